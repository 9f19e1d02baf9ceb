// Text that terminals and logs can take. Messages quote what stands in files, which may be anything.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ananke {

// The text, with every byte that is not UTF-8 and every control character but line feeds and tabs as \xNN, so that a
// quoted file cannot steer a terminal. Beyond about `most` bytes "... (N bytes more)" stands for the rest.
std::string printable(std::string_view text, std::size_t most = std::string_view::npos);

// Bytes of the well-formed UTF-8 character that the text begins with; 0: it begins with none.
std::size_t utf8_bytes(std::string_view text) noexcept;

}  // namespace ananke
