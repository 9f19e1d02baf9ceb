#include "plugins/backend_cuda/operators/side_streams.h"

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {

SideStreams::SideStreams(const DeviceFacts& facts) : device_(facts.device) {
  if (device_ < 0) return;
  try {
    check(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming), "make an event");
    for (cudaEvent_t& event : ended_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    for (cudaStream_t& stream : streams_) {
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    }
  } catch (...) {
    close();
    throw;
  }
}

SideStreams::~SideStreams() { close(); }

void SideStreams::close() noexcept {
  if (device_ < 0) return;
  cudaSetDevice(device_);
  for (const cudaStream_t stream : streams_) {
    if (stream) cudaStreamDestroy(stream);
  }
  for (const cudaEvent_t event : ended_) {
    if (event) cudaEventDestroy(event);
  }
  if (begun_) cudaEventDestroy(begun_);
}

void SideStreams::begin(cudaStream_t main) {
  check(cudaEventRecord(begun_, main), "record an event");
  for (const cudaStream_t stream : streams_) check(cudaStreamWaitEvent(stream, begun_), "wait for an event");
}

void SideStreams::end(cudaStream_t main) {
  for (std::size_t i = 0; i < count; ++i) {
    check(cudaEventRecord(ended_[i], streams_[i]), "record an event");
    check(cudaStreamWaitEvent(main, ended_[i]), "wait for an event");
  }
}

}  // namespace ananke::cuda
