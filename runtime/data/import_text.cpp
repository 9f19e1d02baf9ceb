#include "runtime/data/import_text.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/data/token_store.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t end_of_document = 256;
constexpr std::uint64_t vocabulary_size = 257;
// What the tokenizer's hash is of: its whole definition.
constexpr const char* definition = "bytes: ids are byte values; 256 ends a document";

void add_folder(const fs::path& folder, std::vector<fs::path>& files) {
  std::vector<fs::path> found;
  std::error_code problem;
  fs::recursive_directory_iterator entry(folder, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    std::error_code ignored;
    if (entry->path().extension() == ".txt" && entry->is_regular_file(ignored)) found.push_back(entry->path());
  }
  if (problem) fail(ErrorKind::data, "cannot list folder {}: {}", folder.string(), problem.message());
  if (found.empty()) {
    fail(ErrorKind::data, "folder {} holds no *.txt; name other files one by one", folder.string());
  }
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
}

class ByteImporter {
 public:
  ByteImporter(const fs::path& output, const std::function<void(const ImportProgress&)>& report)
      : writer_(output, "bytes", hash_hex(definition), end_of_document, vocabulary_size), report_(report) {}

  ImportResult run(const std::vector<fs::path>& inputs) {
    const std::vector<fs::path> files = text_files(inputs);
    for (const fs::path& file : files) {
      std::error_code ignored;
      const std::uintmax_t bytes = fs::file_size(file, ignored);
      if (!ignored) progress_.bytes_total += bytes;
    }
    for (const fs::path& file : files) add_document(file);
    std::string source;
    for (const fs::path& input : inputs) source += (source.empty() ? "" : "\n") + input.string();
    writer_.finish(source, hasher_.hex(), progress_.bytes_done);
    return {progress_.documents, progress_.bytes_done + progress_.documents, progress_.bytes_done};
  }

 private:
  void add_document(const fs::path& path) {
    std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) fail(ErrorKind::data, "cannot open {}: {}", path.string(), std::strerror(errno));
    std::uint64_t length = 0;
    while (const std::size_t got = std::fread(bytes_.data(), 1, bytes_.size(), file.get())) {
      hasher_.update(bytes_.data(), got);
      std::copy_n(bytes_.begin(), got, tokens_.begin());
      writer_.append({tokens_.data(), got});
      length += got;
      progress_.bytes_done += got;
      if (report_) report_(progress_);
    }
    if (std::ferror(file.get())) fail(ErrorKind::data, "cannot read {}: {}", path.string(), std::strerror(errno));
    hasher_.update(&length, sizeof length);  // "ab", "c" is other text than "a", "bc"
    writer_.append({&end_of_document, 1});
    writer_.end_document();
    ++progress_.documents;
  }

  TokenStoreWriter writer_;
  const std::function<void(const ImportProgress&)>& report_;
  ImportProgress progress_;
  Hasher hasher_;
  std::vector<unsigned char> bytes_ = std::vector<unsigned char>(std::size_t{1} << 20);
  std::vector<std::int32_t> tokens_ = std::vector<std::int32_t>(std::size_t{1} << 20);
};

}  // namespace

std::vector<fs::path> text_files(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    std::error_code problem;
    const fs::file_status status = fs::status(input, problem);
    if (fs::is_directory(status)) {
      add_folder(input, files);
    } else if (fs::exists(status)) {
      files.push_back(input);
    } else {
      fail(ErrorKind::data, "cannot import {}: {}", input.string(),
           problem ? problem.message() : "there is no such file");
    }
  }
  if (files.empty()) fail(ErrorKind::data, "there is nothing to import: name text files, or folders of *.txt");
  return files;
}

void check_output(const fs::path& output, const std::vector<fs::path>& files) {
  std::error_code none;
  if (fs::is_directory(output, none)) {
    fail(ErrorKind::resource, "cannot write the token store {}: it is a folder; name a file", output.string());
  }
  for (const fs::path& file : files) {
    if (!fs::equivalent(file, output, none)) continue;
    fail(ErrorKind::data, "the token store {} would replace {}, one of the files to import; name another output",
         output.string(), file.string());
  }
}

ImportResult import_bytes(const std::vector<fs::path>& inputs, const fs::path& output,
                          const std::function<void(const ImportProgress&)>& report) {
  check_output(output, text_files(inputs));
  return ByteImporter(output, report).run(inputs);
}

}  // namespace ananke
