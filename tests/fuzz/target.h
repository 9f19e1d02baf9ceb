// What the readers under test share. A reader given any bytes returns, or throws an Error that a person understands;
// everything else is a fault, which ends the process: with ours and with libFuzzer's engine alike.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "runtime/base/error.h"

namespace ananke::fuzz {

[[noreturn]] inline void fault(const std::string& what) {
  std::fprintf(stderr, "fault: %s\n", what.c_str());
  std::abort();
}

inline void require(bool holds, std::string_view what) {
  if (!holds) fault(std::string(what));
}

// Not longer than a screen or two, no control characters but line feeds and tabs, valid UTF-8: what a terminal and a
// log can take. Names the object, if `object` is given.
void check_message(const Error& error, ErrorKind kind, std::string_view object);

// True: the reader returned.
template <class Read>
bool expect_value_or_error(ErrorKind kind, std::string_view object, Read read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    check_message(error, kind, object);
  } catch (const std::exception& error) {
    fault(fmt::format("an exception that is no Error: {}", error.what()));
  }
  return false;
}

// A folder for the files of one process, in memory where there is such a file system; removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {size == 0 ? "" : reinterpret_cast<const char*>(data), size};
}

}  // namespace ananke::fuzz
