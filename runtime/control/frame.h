// Messages on a TCP stream: a length (uint32, network order), then a serialized ControlMessage.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ananke {

class ControlMessage;

// Longest message of a worker that has joined, and of a connection that has not said who it is.
constexpr std::size_t max_frame_bytes = std::size_t{64} << 20;
constexpr std::size_t max_hello_bytes = std::size_t{16} << 10;

// Throws Error(internal) where the message is larger than max_frame_bytes.
std::string encode_frame(const ControlMessage& message);

// Collects bytes as they come and gives them back as messages.
class FrameReader {
 public:
  void add(std::string_view bytes) { buffer_.append(bytes); }
  // False while the next message is incomplete. Throws Error(internal) at a length above `limit` or at bytes that are
  // no ControlMessage: the peer is no worker of ours.
  bool next(ControlMessage& message, std::size_t limit = max_frame_bytes);

 private:
  std::string buffer_;
  std::size_t taken_ = 0;
};

}  // namespace ananke
