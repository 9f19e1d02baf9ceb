#include "plugins/backend_cuda/cuda_stream.h"

#include <chrono>
#include <thread>
#include <utility>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/failure.h"
#include "runtime/base/log.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto spin = std::chrono::microseconds(200);     // most reads inside a step are shorter
constexpr auto nap = std::chrono::microseconds(50);       // then the core is somebody else's
constexpr auto after_failure = std::chrono::seconds(10);  // for what was aborted to come to its end

// Polls until `query` is no longer cudaErrorNotReady, and gives its last result. Polling, not a blocking call: a stream
// that stands behind a collective whose peer is gone may never come to its end.
template <class Query>
cudaError_t wait_until_ready(const Failure& failure, Query query) {
  cudaError_t result = query();
  if (result != cudaErrorNotReady) return result;
  const PluginWait wait;
  const Clock::time_point start = Clock::now();
  Clock::time_point failed_at{};
  while ((result = query()) == cudaErrorNotReady) {
    const Clock::time_point now = Clock::now();
    if (failure.failed()) {
      if (failed_at == Clock::time_point{}) failed_at = now;
      if (now - failed_at > after_failure) return cudaErrorNotReady;
    }
    if (now - start < spin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap);
    }
  }
  return result;
}

template <class To, class From>
To& own(From& from, const char* what) {
  auto* to = dynamic_cast<To*>(&from);
  ANANKE_CHECK(to, "{} of another backend was given to a stream or operator of the CUDA backend", what);
  return *to;
}

}  // namespace

void use_device(int device) { check(cudaSetDevice(device), "use CUDA device " + std::to_string(device)); }

CudaStream::CudaStream(std::string name, int device, int priority, std::shared_ptr<const Failure> failure)
    : name_(std::move(name)), device_(device), failure_(std::move(failure)) {
  use_device(device_);
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "make stream " + name_);
}

CudaStream::~CudaStream() {
  cudaSetDevice(device_);
  const cudaError_t result = wait_until_ready(*failure_, [&] { return cudaStreamQuery(stream_); });
  if (result != cudaSuccess && !failure_->failed()) {
    log_error("stream {} ends with CUDA's {} ({})", name_, cudaGetErrorName(result), cudaGetErrorString(result));
  }
  cudaStreamDestroy(stream_);
}

cudaStream_t raw(Stream& stream) { return CudaStream::of(stream).raw(); }

CudaStream& CudaStream::of(Stream& stream) { return own<CudaStream>(stream, "a stream"); }

cudaStream_t CudaStream::raw() const {
  use_device(device_);
  return stream_;
}

void CudaStream::record(Event& event) {
  check(cudaEventRecord(own<CudaEvent>(event, "an event").raw(), raw()), "record an event on stream " + name_);
}

void CudaStream::wait(const Event& event) {
  const cudaStream_t stream = raw();
  if (clock_) clock_->wait_begins(stream);
  check(cudaStreamWaitEvent(stream, own<const CudaEvent>(event, "an event").raw(), cudaEventWaitDefault),
        "let stream " + name_ + " wait for an event");
  if (clock_) clock_->wait_ends(stream);
}

std::optional<double> CudaStream::busy_seconds() {
  if (!clock_ || failure_->failed()) return std::nullopt;
  clock_->mark(raw());
  const cudaError_t result = wait_until_ready(*failure_, [&] { return cudaEventQuery(clock_->last_mark()); });
  if (failure_->failed()) return std::nullopt;
  check(result, "wait for a mark on stream " + name_);
  return clock_->take();
}

void CudaStream::synchronize() {
  const cudaStream_t stream = raw();
  const cudaError_t result = wait_until_ready(*failure_, [&] { return cudaStreamQuery(stream); });
  failure_->rethrow();
  check(result, "finish the work on stream " + name_);
}

CudaEvent::CudaEvent(int device, std::shared_ptr<const Failure> failure, bool timed)
    : device_(device), failure_(std::move(failure)), timed_(timed) {
  use_device(device_);
  check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming), "make an event");
}

CudaEvent::~CudaEvent() {
  cudaSetDevice(device_);
  cudaEventDestroy(event_);
}

bool CudaEvent::reached() const {
  const cudaError_t result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) return false;
  if (!failure_->failed()) check(result, "ask for an event");
  return true;
}

std::optional<double> CudaEvent::seconds_since(const Event& earlier) const {
  const auto& other = own<const CudaEvent>(earlier, "an event");
  if (!timed_ || !other.timed_ || !reached() || !other.reached() || failure_->failed()) return std::nullopt;
  float milliseconds = 0;
  const cudaError_t result = cudaEventElapsedTime(&milliseconds, other.event_, event_);
  if (result == cudaErrorInvalidResourceHandle) {  // never recorded
    cudaGetLastError();
    return std::nullopt;
  }
  check(result, "ask for the time between two events");
  return static_cast<double>(milliseconds) * 1e-3;
}

void CudaEvent::synchronize() const {
  const cudaError_t result = wait_until_ready(*failure_, [&] { return cudaEventQuery(event_); });
  if (!failure_->failed()) check(result, "wait for an event");
}

}  // namespace ananke::cuda
