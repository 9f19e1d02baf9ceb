#include "plugins/backend_cuda/cuda_device.h"

#include <cstring>
#include <utility>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/environment.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"

namespace ananke::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

DeviceFacts open_device(int device) {
  check_environment();
  check(cudaInitDevice(device, 0, 0), fmt::format("open CUDA device {}", device));
  use_device(device);
  return DeviceFacts::of(device);
}

// Blocks of a collective run before those of a kernel that was there first, but it takes no SM away from one that runs.
int priority_of(Resource resource) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for the priorities of streams");
  return resource == Resource::compute ? least : greatest;
}

}  // namespace

CudaDevice::CudaDevice(Setup setup)
    : setup_(std::move(setup)),
      facts_(open_device(setup_.device)),
      blocks_(setup_.device),
      pinned_blocks_(setup_.device),
      source_(blocks_, setup_.block_bytes),
      pinned_source_(pinned_blocks_, setup_.pinned_block_bytes),
      arena_(source_),
      pinned_arena_(pinned_source_),
      landing_(pinned_arena_.allocate(landing_bytes, "reads (host)")) {
  for (int i = 0; i < resource_count; ++i) {
    const auto resource = static_cast<Resource>(i);
    streams_.at(static_cast<std::size_t>(i)) =
        std::make_unique<CudaStream>(name_of(resource), setup_.device, priority_of(resource), failure_);
  }
  CudaStream::of(stream(Resource::compute)).keep_time();
}

CudaDevice::~CudaDevice() {
  for (auto& stream : streams_) stream.reset();
  const BlockMemory::Numbers numbers = source_.numbers();
  log_info("device memory: {} at most in use, {} reserved in {} blocks, {} retries; {} host reads",
           format_bytes(arena_.peak()), format_bytes(numbers.reserved), numbers.blocks, numbers.retries, reads());
}

std::string CudaDevice::description() const {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "ask for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "ask for the CUDA runtime's version");
  return fmt::format("{} {}, {} SMs, {}, CUDA {} (driver {})", facts_.name, setup_.uuid, facts_.multiprocessors,
                     format_bytes(facts_.memory_bytes), version_text(runtime), version_text(driver));
}

int CudaDevice::numa_node() const {
  int node = -1;
  check(cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, facts_.device), "ask for the device's NUMA node");
  return node;
}

std::uint64_t CudaDevice::reads() const {
  std::lock_guard lock(counting_);
  return reads_.load(std::memory_order_relaxed) + (others_reads_ ? others_reads_() : 0);
}

Device::MemoryUse CudaDevice::memory_use() {
  const BlockMemory::Numbers numbers = source_.numbers();
  return {arena_.used(), numbers.reserved, numbers.retries};
}

std::optional<double> CudaDevice::busy_seconds() { return CudaStream::of(stream(Resource::compute)).busy_seconds(); }

void CudaDevice::count_reads_of(std::function<std::uint64_t()> others) {
  std::lock_guard lock(counting_);
  others_reads_ = std::move(others);
}

void CudaDevice::copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  CudaStream& mine = CudaStream::of(stream);
  if (bytes == 0) return;
  const cudaError_t result = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, mine.raw());
  if (result != cudaSuccess) {
    detail::failed(result,
                   fmt::format("copy {} from {} to {} on stream {}", format_bytes(bytes), from, to, mine.name()));
  }
}

void CudaDevice::zero(Stream& stream, void* to, std::size_t bytes) {
  CudaStream& mine = CudaStream::of(stream);
  if (bytes == 0) return;
  const cudaError_t result = cudaMemsetAsync(to, 0, bytes, mine.raw());
  if (result != cudaSuccess) {
    detail::failed(result, fmt::format("fill {} at {} with zeros on stream {}", format_bytes(bytes), to, mine.name()));
  }
}

void CudaDevice::read(const TensorView& from, void* to) {
  Stream& compute = stream(Resource::compute);
  const std::size_t bytes = from.bytes();
  std::lock_guard lock(reading_);
  reads_.fetch_add(1, std::memory_order_relaxed);
  if (bytes <= landing_bytes) {
    copy(compute, landing_.data(), from.data, bytes);
    compute.synchronize();
    if (bytes) std::memcpy(to, landing_.data(), bytes);
    return;
  }
  // A copy to memory that is not pinned blocks this thread: only when nothing before it can keep it waiting.
  compute.synchronize();
  copy(compute, to, from.data, bytes);
  compute.synchronize();
}

}  // namespace ananke::cuda
