// What travels over standard input and output: a 32-bit count in little endian, then so many units. Text counts bytes,
// tokens count 32-bit ids. Errors are std::runtime_error with a sentence.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace tokenize {

// False at the end of input between two frames.
bool read_text(std::FILE* in, std::string& out);
bool read_tokens(std::FILE* in, std::vector<int>& out);
void write_text(std::FILE* out, const std::string& text);
void write_tokens(std::FILE* out, const std::vector<int>& tokens);

}  // namespace tokenize
