#include "plugins/backend_cuda/device_trace.h"

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "plugins/backend_cuda/cupti_library.h"
#include "plugins/backend_cuda/kernel_name.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{4} << 20;

// Runtime calls that launch nothing and are many: whoever waits polls.
constexpr CUpti_CallbackId quiet_calls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020, CUPTI_RUNTIME_TRACE_CBID_cudaPeekAtLastError_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaSetDevice_v3020,    CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_v3020,  CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020,  CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020,
};
// Driver calls of the same kind. Libraries launch by the driver: NCCL, cuDNN, cuBLASLt.
constexpr CUpti_CallbackId quiet_driver_calls[] = {
    CUPTI_DRIVER_TRACE_CBID_cuEventQuery,        CUPTI_DRIVER_TRACE_CBID_cuStreamQuery,
    CUPTI_DRIVER_TRACE_CBID_cuEventRecord,       CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent,
    CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent,     CUPTI_DRIVER_TRACE_CBID_cuCtxSetCurrent,
    CUPTI_DRIVER_TRACE_CBID_cuCtxPushCurrent_v2, CUPTI_DRIVER_TRACE_CBID_cuCtxPopCurrent_v2,
    CUPTI_DRIVER_TRACE_CBID_cuCtxGetDevice,      CUPTI_DRIVER_TRACE_CBID_cuStreamIsCapturing,
};
constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME,
                                        CUPTI_ACTIVITY_KIND_DRIVER};

// A piece of work as CUPTI tells it. Its stream has a number.
struct Activity {
  std::uint32_t device, stream, correlation;
  TraceTask task;
};

// CUPTI calls back without saying for whom, so what it tells lands here, for the one rank that is traced.
struct Session {
  std::mutex mutex;
  const CuptiLibrary* cupti = nullptr;  // null: nobody is traced
  std::vector<Activity> activities;
  std::unordered_map<std::uint32_t, TraceClock::time_point> launches;  // begin of the call, by correlation
  std::unordered_map<std::string, std::string> names;                  // short ones of kernels
  std::chrono::nanoseconds shift{0};                                   // from CUPTI's clock to the trace's
  std::uint64_t without_time = 0;
  std::string trouble;
};

// Never destroyed: a thread of CUPTI's may still call when the process ends.
Session& session() {
  static Session& only = *std::make_unique<Session>().release();
  return only;
}

TraceClock::time_point time_of(const Session& all, std::uint64_t timestamp) {
  return TraceClock::time_point(std::chrono::nanoseconds(static_cast<std::int64_t>(timestamp)) + all.shift);
}

std::uint64_t CUPTIAPI trace_time() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(TraceClock::now().time_since_epoch()).count());
}

const char* direction_of(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "memcpy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: return "memcpy host to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "memcpy peer to peer";
    default: return "memcpy";
  }
}

std::string extent(std::int32_t x, std::int32_t y, std::int32_t z) { return fmt::format("{} x {} x {}", x, y, z); }

// Records grow from version to version of CUPTI, at their end: of each, the fields read here stand where they stood in
// the version named, whichever is installed.
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
using FillRecord = CUpti_ActivityMemset4;

template <class Record>
void take(Session& all, const Record& record, TraceKind kind, TraceText text) {
  if (record.start == 0 || record.end < record.start) {
    ++all.without_time;
    return;
  }
  TraceTask task{"", kind, std::move(text), time_of(all, record.start), time_of(all, record.end)};
  all.activities.push_back({record.deviceId, record.streamId, record.correlationId, std::move(task)});
}

void take_kernel(Session& all, const KernelRecord& record) {
  const std::string name = record.name ? record.name : "kernel";
  auto [place, is_new] = all.names.try_emplace(name);
  if (is_new) place->second = short_kernel_name(name);
  take(all, record, TraceKind::kernel,
       {place->second,
        {{"grid", extent(record.gridX, record.gridY, record.gridZ)},
         {"block", extent(record.blockX, record.blockY, record.blockZ)},
         {"registers", record.registersPerThread},
         {"shared", record.staticSharedMemory + record.dynamicSharedMemory}}});
}

void take_record(Session& all, const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return take_kernel(all, reinterpret_cast<const KernelRecord&>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CopyRecord&>(record);
      return take(all, copy, TraceKind::copy, {direction_of(copy.copyKind), {{"bytes", copy.bytes}}});
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = reinterpret_cast<const FillRecord&>(record);
      return take(all, fill, TraceKind::copy, {"memset", {{"bytes", fill.bytes}}});
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = reinterpret_cast<const CUpti_ActivityAPI&>(record);
      all.launches.try_emplace(call.correlationId, time_of(all, call.start));
      return;
    }
    default: return;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, buffer_bytes));
  *size = *buffer ? buffer_bytes : 0;
  *most_records = 0;
}

// On a thread of CUPTI's, or inside the flush.
void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t bytes) {
  const std::unique_ptr<std::uint8_t, void (*)(void*)> owned(buffer, std::free);
  Session& all = session();
  const std::lock_guard lock(all.mutex);
  if (!all.cupti || !buffer || bytes == 0) return;
  try {
    CUpti_Activity* record = nullptr;
    while (all.cupti->next_record(buffer, bytes, &record) == CUPTI_SUCCESS) take_record(all, *record);
  } catch (const std::exception& error) {
    all.trouble = error.what();
  }
}

// The first call that fails ends it: why, or empty.
std::string enable(const CuptiLibrary& cupti) {
  std::string why;
  const auto attempt = [&](CUptiResult result, const char* what) {
    if (result == CUPTI_SUCCESS || !why.empty()) return;
    const char* text = nullptr;
    cupti.result_text(result, &text);
    why = fmt::format(
        "CUPTI cannot {}: {}; another profiler may be attached to this process, or the driver be older than CUPTI",
        what, text ? text : "no reason given");
  };
  attempt(cupti.register_callbacks(give_buffer, take_buffer), "take buffers");
  for (const CUpti_ActivityKind kind : kinds) {
    if (why.empty()) attempt(cupti.enable(kind), "record activity");
  }
  if (!why.empty()) return why;
  if (cupti.enable_runtime_call) {
    for (const CUpti_CallbackId call : quiet_calls) cupti.enable_runtime_call(call, 0);
  }
  if (cupti.enable_driver_call) {
    for (const CUpti_CallbackId call : quiet_driver_calls) cupti.enable_driver_call(call, 0);
  }
  return why;
}

void disable(const CuptiLibrary& cupti) {
  for (const CUpti_ActivityKind kind : kinds) cupti.disable(kind);
}

// CUPTI takes the trace's clock; an installation that does not has one of its own, which runs as fast.
std::chrono::nanoseconds take_clock(const CuptiLibrary& cupti) {
  if (cupti.register_timestamp(trace_time) == CUPTI_SUCCESS) return std::chrono::nanoseconds(0);
  std::uint64_t theirs = 0;
  const std::uint64_t before = trace_time();
  if (cupti.timestamp(&theirs) != CUPTI_SUCCESS) return std::chrono::nanoseconds(0);
  const std::uint64_t ours = before + (trace_time() - before) / 2;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(ours - theirs));
}

// The numbers under which CUPTI knows the device's streams.
std::map<std::uint32_t, std::string> name_streams(CudaDevice& device, const CuptiLibrary& cupti) {
  std::map<std::uint32_t, std::string> names;
  for (int i = 0; i < resource_count; ++i) {
    const auto resource = static_cast<Resource>(i);
    std::uint32_t number = 0;
    if (cupti.stream_id(nullptr, raw(device.stream(resource)), 0, &number) == CUPTI_SUCCESS) {
      names[number] = name_of(resource);
    }
  }
  return names;
}

bool is_operator(const Trace& trace, std::uint64_t span) {
  return span > 0 && trace.spans()[span - 1].kind == TraceKind::operation;
}

// Streams that are none of the device's are those that an operator has for itself, or a library's.
void tell(const Session& told, CudaDevice& device, Trace& trace) {
  std::map<std::uint32_t, std::string> names = name_streams(device, *told.cupti);
  int sides = 0;
  for (const Activity& activity : told.activities) {
    if (activity.device != static_cast<std::uint32_t>(device.facts().device)) continue;
    TraceTask task = activity.task;
    const auto launch = told.launches.find(activity.correlation);
    if (launch != told.launches.end()) task.launch = trace.span_at(launch->second);
    std::string& stream = names[activity.stream];
    if (stream.empty()) {
      stream = is_operator(trace, task.launch) ? fmt::format("{} side {}", name_of(Resource::compute), ++sides)
                                               : fmt::format("stream {}", activity.stream);
    }
    task.stream = stream;
    trace.add(std::move(task));
  }
}

void tell_losses(const Session& told, Trace& trace) {
  std::size_t dropped = 0;
  if (told.cupti->dropped(nullptr, 0, &dropped) == CUPTI_SUCCESS && dropped > 0) {
    trace.note(fmt::format("{} records of device activity are lost: CUPTI had no room for them", dropped));
  }
  if (told.without_time > 0) {
    trace.note(fmt::format("{} kernels or copies have no time: CUPTI had no device memory for it, or they did not end",
                           told.without_time));
  }
  if (!told.trouble.empty()) trace.note("device activity is not complete: " + told.trouble);
}

}  // namespace

DeviceTrace::~DeviceTrace() { end(); }

void DeviceTrace::begin(Trace& trace) {
  end();
  std::string why;
  const CuptiLibrary* cupti = cupti_library(&why);
  Session& all = session();
  if (cupti) {
    const std::lock_guard lock(all.mutex);
    if (all.cupti) {
      why = "CUPTI serves one rank of a process at a time, and another one is being traced";
      cupti = nullptr;
    } else {
      all.cupti = cupti;
    }
  }
  if (cupti) {
    use_device(device_.facts().device);
    const std::chrono::nanoseconds shift = take_clock(*cupti);
    {
      const std::lock_guard lock(all.mutex);
      all.shift = shift;
    }
    why = enable(*cupti);
    if (why.empty()) {
      trace_ = &trace;
      return;
    }
    disable(*cupti);
    const std::lock_guard lock(all.mutex);
    all.cupti = nullptr;
  }
  log_warning("no device activity in the trace: {}", why);
  trace.note("no device activity: " + why);
}

void DeviceTrace::end() {
  if (!trace_) return;
  Trace& trace = *std::exchange(trace_, nullptr);
  Session& all = session();
  const CuptiLibrary& cupti = *all.cupti;
  use_device(device_.facts().device);
  disable(cupti);
  cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(all.mutex);
  tell(all, device_, trace);
  tell_losses(all, trace);
  all.cupti = nullptr;
  all.activities.clear();
  all.launches.clear();
  all.without_time = 0;
  all.trouble.clear();
}

}  // namespace ananke::cuda
