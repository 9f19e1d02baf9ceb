// What an export carries along beside the weights: the tokenizer, and how to generate.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ananke {

class Job;  // proto/ananke/job.proto

// A file by its content, or by where a copy of it lies.
struct CarriedFile {
  std::string name;
  std::filesystem::path from;  // where `content` is empty
  std::string content = {};
};

struct CarriedFiles {
  std::vector<CarriedFile> files;
  std::vector<std::string> remarks;  // sentences: where they come from, and why some are not there
};

// The tokenizer's files and generation_config.json of the Hugging Face folder that the job began with; where it has no
// tokenizer, or the job began with none, the SentencePiece model that is kept in the store it trained on, as
// tokenizer.model, with the tokenizer_config.json by which transformers cuts texts as it does. Never throws for what is
// missing or cannot be read: a remark says so.
CarriedFiles find_carried_files(const Job& job);

}  // namespace ananke
