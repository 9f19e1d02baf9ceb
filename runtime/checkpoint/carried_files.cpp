#include "runtime/checkpoint/carried_files.h"

#include <array>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/data/token_store.h"

namespace ananke {
namespace {

// As transformers saves them; any of the first makes a tokenizer.
constexpr std::array tokenizers = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"};
constexpr std::array others = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "merges.txt",
    "chat_template.jinja",   "chat_template.json",      "generation_config.json"};

// Whether there is a tokenizer among them.
bool add_folder(const std::filesystem::path& folder, CarriedFiles& carried) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    carried.remarks.push_back(
        fmt::format("{}, where the weights came from, is not there any more: copy its tokenizer's files and "
                    "generation_config.json by hand",
                    folder.string()));
    return false;
  }
  std::string names;
  const auto add = [&](const char* name) {
    if (!std::filesystem::is_regular_file(folder / name, error)) return false;
    carried.files.push_back({name, folder / name});
    names += (names.empty() ? "" : ", ") + std::string(name);
    return true;
  };
  bool found = false;
  for (const char* name : tokenizers) found = add(name) || found;
  for (const char* name : others) add(name);
  if (!names.empty()) carried.remarks.push_back(fmt::format("{} from {}", names, folder.string()));
  if (!found) carried.remarks.push_back(fmt::format("{} has no tokenizer", folder.string()));
  return found;
}

void add_store(const std::filesystem::path& path, CarriedFiles& carried) {
  try {
    const TokenStore store(path);
    if (std::string model = store.tokenizer_model(); !model.empty()) {
      carried.files.push_back({"tokenizer.model", {}, std::move(model)});
      carried.remarks.push_back(fmt::format("tokenizer.model from {}", path.string()));
      return;
    }
    const std::string& name = store.info().tokenizer;
    carried.remarks.push_back(name == "bytes" ? "no tokenizer: tokens are bytes, and 256 ends a document"
                                              : fmt::format("{} does not hold its tokenizer ({}, hash {}): put its "
                                                            "files beside the weights by hand",
                                                            path.string(), name, store.info().tokenizer_hash));
  } catch (const Error& error) {
    carried.remarks.push_back(fmt::format("no tokenizer: {}", error.what()));
  }
}

}  // namespace

CarriedFiles find_carried_files(const Job& job) {
  CarriedFiles carried;
  if (!job.initial_weights().empty() && add_folder(job.initial_weights(), carried)) return carried;
  if (!job.data().tokens().empty()) add_store(job.data().tokens(), carried);
  return carried;
}

}  // namespace ananke
