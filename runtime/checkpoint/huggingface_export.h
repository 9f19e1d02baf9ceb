// Writing what Hugging Face transformers and vLLM open: config.json and sharded safetensors in transformers' names, one
// tensor per expert matrix. The family is the one that computes the same:
//
//   qwen3      no layer has experts
//   qwen3_moe  softmax routers
//   dots1      sigmoid routers, with bias and groups as DeepSeek-V3 has them; its shared experts have width 0, and its
//              dense layers stand before all others
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/carried_files.h"
#include "runtime/checkpoint/safetensors_writer.h"
#include "runtime/model/parameter_table.h"

namespace ananke {

// The config.json of a resolved model (head_dim and num_key_value_heads are set); read_huggingface_config() reads the
// same model back, but for what only training knows (z-loss, movement of biases; with dots1 the auxiliary loss). RoPE's
// base stands in it in the words of transformers 4 and of transformers 5. Throws Error(config) naming what no family
// has.
std::string huggingface_config_text(const Model& model, SafetensorsType dtype);

struct ExportOptions {
  std::filesystem::path output;                   // a folder that does not exist yet, or is empty
  SafetensorsType dtype = SafetensorsType::bf16;  // f32 is exact; bf16 is rounded to nearest even
  std::uint64_t shard_bytes = 5'000'000'000;      // of tensors per file; a larger tensor has a file of its own
  std::vector<CarriedFile> files = {};            // copied beside them
};
struct ExportSummary {
  std::size_t tensors = 0, files = 0;
  std::uint64_t bytes = 0;  // of all tensors
};
// Elements [begin, begin + out.size()) of a parameter.
using ReadParameter = std::function<void(const Parameter& parameter, std::int64_t begin, std::span<float> out)>;
// What is done of all bytes, now and then.
using ExportProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Every parameter of the model in the table's order (experts by number; a tied head has no tensor), then router biases
// (always f32) and what else the family has, in pieces of at
// most 16 MiB: memory does not grow with the model. The folder gets its name when all of it is on disk. Throws
// Error(config) when the output exists already, Error(resource) when it cannot be written, and what `read` throws.
ExportSummary export_huggingface(const Model& model, const ExportOptions& options, const ReadParameter& read,
                                 const ExportProgress& progress = {});

}  // namespace ananke
