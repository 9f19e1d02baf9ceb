// Which files a source of text stands for.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/data/import_documents.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

bool ends_in(const fs::path& path, std::string_view extension) {
  std::string name = path.filename().string();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return name.ends_with(extension);
}

bool is_json_lines(const fs::path& path) { return ends_in(path, ".jsonl"); }

TextFormat format_of(const fs::path& path, ImportFormat format) {
  if (format == ImportFormat::by_name) return is_json_lines(path) ? TextFormat::json_lines : TextFormat::text;
  return format == ImportFormat::json_lines ? TextFormat::json_lines : TextFormat::text;
}

bool is_wanted(const fs::path& path, ImportFormat format) {
  const bool text = format != ImportFormat::json_lines && ends_in(path, ".txt");
  const bool lines = format != ImportFormat::text && is_json_lines(path);
  return text || lines;
}

const char* names_of(ImportFormat format) {
  switch (format) {
    case ImportFormat::text: return "*.txt or *.txt.gz";
    case ImportFormat::json_lines: return "*.jsonl or *.jsonl.gz";
    default: return "*.txt, *.txt.gz, *.jsonl or *.jsonl.gz";
  }
}

}  // namespace

std::vector<TextFile> text_files(const fs::path& source, ImportFormat format) {
  std::error_code problem;
  const fs::file_status status = fs::status(source, problem);
  if (!fs::exists(status)) {
    fail(ErrorKind::data, "cannot import {}: {}", source.string(),
         problem ? problem.message() : "there is no such file");
  }
  if (!fs::is_directory(status)) return {{source, format_of(source, format)}};
  std::vector<TextFile> found;
  fs::recursive_directory_iterator entry(source, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    std::error_code ignored;
    if (is_wanted(entry->path(), format) && entry->is_regular_file(ignored)) {
      found.push_back({entry->path(), format_of(entry->path(), format)});
    }
  }
  if (problem) fail(ErrorKind::data, "cannot list folder {}: {}", source.string(), problem.message());
  if (found.empty()) {
    fail(ErrorKind::data, "folder {} holds no {}; name other files one by one", source.string(), names_of(format));
  }
  std::sort(found.begin(), found.end(), [](const TextFile& a, const TextFile& b) { return a.path < b.path; });
  return found;
}

}  // namespace ananke
