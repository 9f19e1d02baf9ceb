#include "ananke/control.pb.h"
#include "runtime/control/frame.h"
#include "tests/fuzz/target.h"

// A stream cut into pieces of any length. What it says is no person's doing: the server drops such a connection.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  const std::string_view stream = text_of(data, size);
  for (const std::size_t limit : {max_hello_bytes, max_frame_bytes}) {
    expect_value_or_error(ErrorKind::internal, "control", [&] {
      FrameReader reader;
      ControlMessage message;
      std::size_t messages = 0;
      for (std::size_t at = 0; at < stream.size();) {
        const std::size_t piece = 1 + static_cast<unsigned char>(stream[at]) % 61;
        reader.add(stream.substr(at, piece));
        at += piece;
        while (reader.next(message, limit)) {
          ++messages;
          require(encode_frame(message).size() <= limit + 4 + size, "a message larger than its frame");
        }
      }
      require(messages <= size / 4, "more messages than lengths");
    });
  }
  return 0;
}
