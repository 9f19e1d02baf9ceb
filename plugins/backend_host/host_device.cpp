#include "plugins/backend_host/host_device.h"

#include <cstring>

namespace ananke {

Stream& HostDevice::stream(Resource resource) {
  std::lock_guard lock(mutex_);
  auto& stream = streams_.at(static_cast<std::size_t>(resource));
  if (!stream) stream = std::make_unique<HostStream>(name_of(resource));
  return *stream;
}

void HostDevice::copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  auto& mine = HostStream::of(stream);
  if (bytes) mine.enqueue([=] { std::memcpy(to, from, bytes); });
}

void HostDevice::zero(Stream& stream, void* to, std::size_t bytes) {
  auto& mine = HostStream::of(stream);
  if (bytes) mine.enqueue([=] { std::memset(to, 0, bytes); });
}

void HostDevice::read(const TensorView& from, void* to) {
  stream(Resource::compute).synchronize();
  if (from.bytes()) std::memcpy(to, from.data, from.bytes());
  reads_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ananke
