#include "runtime/checkpoint/carried_files.h"

#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
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

// Whether the model cuts a text as it is, as those that are trained here do; others put a space before it, or take
// some away. ModelProto.normalizer_spec (3) of sentencepiece_model.proto; add_dummy_prefix (3) and
// remove_extra_whitespaces (4) are true where they are not set.
bool keeps_spaces(const std::string& model) {
  google::protobuf::UnknownFieldSet fields;
  if (!fields.ParseFromString(model)) return false;
  bool adds = true, removes = true;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    google::protobuf::UnknownFieldSet normalizer;
    if (field.number() != 3 || field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (!normalizer.ParseFromString(field.length_delimited())) return false;
    for (int k = 0; k < normalizer.field_count(); ++k) {
      const google::protobuf::UnknownField& inner = normalizer.field(k);
      if (inner.type() != google::protobuf::UnknownField::TYPE_VARINT) continue;
      if (inner.number() == 3) adds = inner.varint() != 0;
      if (inner.number() == 4) removes = inner.varint() != 0;
    }
  }
  return !adds && !removes;
}

// Without this file transformers takes the tokenizer of the family, whose tokens are others. This class reads
// tokenizer.model as it is, when its packages sentencepiece and protobuf are there.
constexpr const char* tokenizer_config = R"({
  "tokenizer_class": "PreTrainedTokenizerFast",
  "clean_up_tokenization_spaces": false
}
)";

void add_tokenizer_config(const std::string& model, CarriedFiles& carried) {
  constexpr const char* name = "tokenizer_config.json";
  const bool there = std::ranges::any_of(carried.files, [&](const CarriedFile& file) { return file.name == name; });
  if (there) return;
  if (keeps_spaces(model)) {
    carried.files.push_back({name, {}, tokenizer_config});
    return;
  }
  carried.remarks.push_back(
      "no tokenizer_config.json: this tokenizer changes spaces, and each class of transformers does that in its own "
      "way; "
      "put the file that came with the tokenizer beside it, or transformers takes another one for the model's family");
}

void add_store(const std::filesystem::path& path, CarriedFiles& carried) {
  try {
    const TokenStore store(path);
    if (std::string model = store.tokenizer_model(); !model.empty()) {
      add_tokenizer_config(model, carried);
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
