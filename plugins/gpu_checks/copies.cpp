#include <algorithm>
#include <array>
#include <cstring>

#include "plugins/gpu_checks/gpu_checks.h"
#include "plugins/gpu_checks/kernels.h"
#include "runtime/base/error.h"

namespace ananke::gpu_checks {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  int gpu = -1;
  cudaGetDevice(&gpu);
  cudaGetLastError();
  const bool busy = result == cudaErrorDevicesUnavailable || result == cudaErrorMemoryAllocation;
  fail(ErrorKind::resource, "cannot {} on GPU {}: CUDA says {} ({}){}", what, gpu, cudaGetErrorName(result),
       cudaGetErrorString(result), busy ? "; does somebody else use the GPU (gpu.use)?" : "");
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream"); }
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::wait() const { check(cudaStreamSynchronize(stream_), "compute"); }

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes), "allocate memory"); }
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

PinnedMemory::PinnedMemory(std::size_t bytes) {
  check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault), "pin memory");
}
PinnedMemory::~PinnedMemory() { cudaFreeHost(data_); }

namespace {

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "make an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) const { check(cudaEventRecord(event_, stream), "record an event"); }
  double seconds_since(const Event& begin) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "read a time");
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

double span_of(const Stream& stream, const std::function<void()>& work, int times) {
  const Event begin, end;
  begin.record(stream);
  for (int i = 0; i < times; ++i) work();
  end.record(stream);
  stream.wait();
  return end.seconds_since(begin) / times;
}

}  // namespace

double seconds_of(const Stream& stream, const std::function<void()>& work, std::chrono::milliseconds least) {
  constexpr std::size_t spans = 7;
  span_of(stream, work, 2);
  const double one = std::max(span_of(stream, work, 2), 1e-6);
  const double wanted = std::chrono::duration<double>(least).count() / spans;
  const int times = static_cast<int>(std::clamp(wanted / one, 1.0, 1e6));
  std::array<double, spans> seconds{};
  for (double& span : seconds) span = span_of(stream, work, times);
  std::ranges::nth_element(seconds, seconds.begin() + spans / 2);
  return seconds[spans / 2];
}

void use_once() {
  constexpr std::size_t words = (64 << 20) / 4;
  const Stream stream;
  const DeviceMemory device(words * 4);
  const PinnedMemory host(words * 4);
  auto* values = static_cast<std::uint32_t*>(host.data());
  for (std::size_t i = 0; i < words; ++i) values[i] = static_cast<std::uint32_t>(i);
  check(cudaMemcpyAsync(device.data(), values, words * 4, cudaMemcpyHostToDevice, stream), "copy to the GPU");
  check(change(static_cast<std::uint32_t*>(device.data()), words, stream), "launch a kernel");
  check(cudaMemcpyAsync(values, device.data(), words * 4, cudaMemcpyDeviceToHost, stream), "copy from the GPU");
  stream.wait();
  for (std::size_t i = 0; i < words; ++i) {
    if (values[i] == 3 * static_cast<std::uint32_t>(i) + 1) continue;
    fail(ErrorKind::numeric, "word {} of {} came back from the GPU as {}, not {}", i, words, values[i],
         3 * static_cast<std::uint32_t>(i) + 1);
  }
}

std::vector<Rate> copy_rates(std::chrono::milliseconds least) {
  constexpr std::size_t bytes = 1 << 30, on_host = 256 << 20;
  const Stream stream;
  const DeviceMemory from(bytes), to(bytes);
  const PinnedMemory host(on_host);
  std::memset(host.data(), 1, on_host);
  check(cudaMemsetAsync(from.data(), 1, bytes, stream), "clear memory");
  const auto copy = [&](void* out, const void* in, std::size_t count, cudaMemcpyKind kind) {
    return seconds_of(
        stream, [&, out, in, count, kind] { check(cudaMemcpyAsync(out, in, count, kind, stream), "copy"); }, least);
  };
  const double device = copy(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice);
  const double in = copy(from.data(), host.data(), on_host, cudaMemcpyHostToDevice);
  const double out = copy(host.data(), from.data(), on_host, cudaMemcpyDeviceToHost);
  return {{"device_to_device", 2.0 * bytes / device / 1e9, "GB/s"},  // read and written
          {"host_to_device", on_host / in / 1e9, "GB/s"},
          {"device_to_host", on_host / out / 1e9, "GB/s"}};
}

}  // namespace ananke::gpu_checks
