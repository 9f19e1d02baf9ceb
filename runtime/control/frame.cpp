#include "runtime/control/frame.h"

#include <arpa/inet.h>

#include <cstdint>
#include <cstring>

#include "ananke/control.pb.h"
#include "runtime/base/error.h"

namespace ananke {

std::string encode_frame(const ControlMessage& message) {
  const std::size_t size = message.ByteSizeLong();
  if (size > max_frame_bytes) {
    fail(ErrorKind::internal, "a control message of {} bytes is larger than the limit of {}; exchange smaller blobs",
         size, max_frame_bytes);
  }
  const std::uint32_t length = htonl(static_cast<std::uint32_t>(size));
  std::string frame(sizeof length + size, '\0');
  std::memcpy(frame.data(), &length, sizeof length);
  message.SerializeToArray(frame.data() + sizeof length, static_cast<int>(size));
  return frame;
}

bool FrameReader::next(ControlMessage& message, std::size_t limit) {
  std::uint32_t length = 0;
  const std::size_t available = buffer_.size() - taken_;
  if (available < sizeof length) return false;
  std::memcpy(&length, buffer_.data() + taken_, sizeof length);
  length = ntohl(length);
  if (length > limit) {
    fail(ErrorKind::internal, "a control message claims {} bytes, more than the limit of {}", length, limit);
  }
  if (available < sizeof length + length) return false;
  if (!message.ParseFromArray(buffer_.data() + taken_ + sizeof length, static_cast<int>(length))) {
    fail(ErrorKind::internal, "{} bytes on the control channel are no control message", length);
  }
  taken_ += sizeof length + length;
  if (taken_ == buffer_.size() || taken_ > (std::size_t{1} << 20)) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  return true;
}

}  // namespace ananke
