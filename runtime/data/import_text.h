// Text files into a token store. Every file is one document.
//
// Tokenizer "bytes": a token is a byte (ids 0 to 255), and every document ends with token 256; vocabulary 257.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace ananke {

struct ImportProgress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  std::uint64_t documents = 0;
};

struct ImportResult {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t bytes = 0;  // of text
};

// The files meant: a file as it is; a folder: its *.txt, those of its folders included, sorted by path. Throws
// Error(data) naming an input that does not exist or holds no *.txt.
std::vector<std::filesystem::path> text_files(const std::vector<std::filesystem::path>& inputs);

// Before a store is written: throws Error(data) where it would replace one of the files it is made of, Error(resource)
// where `output` is a folder.
void check_output(const std::filesystem::path& output, const std::vector<std::filesystem::path>& files);

// Imports with tokenizer "bytes", in bounded memory; replaces `output`, once all of it is on disk. `report` is called
// about every MiB. Throws Error(data) naming the file that cannot be read or would be replaced by `output`,
// Error(resource) where `output` cannot be written.
ImportResult import_bytes(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                          const std::function<void(const ImportProgress&)>& report = {});

}  // namespace ananke
