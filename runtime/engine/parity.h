// Runs a Hugging Face model on a recorded case and compares logits, loss and gradients with what is recorded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace ananke {

struct ParityOptions {
  std::filesystem::path folder;     // config.json and safetensors
  std::filesystem::path case_file;  // input_ids [B, S], and any of logits [B, S, V], loss [1], grad.<parameter>
  int ranks = 1;                    // rows are dealt to them in turn
  bool processes = false;           // ranks are processes, not threads of this one
  int replicate = 1;                // must divide ranks; the rest is the shard axis
  int expert = 1;                   // must divide the shard axis; tokens are then exchanged by plugin ep
  std::string backend = "backend_host";
  bool recompute = false;
  DType compute = DType::f32;      // or bf16 (training.compute)
  double logits_tolerance = 2e-5;  // absolute
  double loss_tolerance = 1e-6;    // absolute
  // Of the tensor's largest element; differences below rounding of the case's largest gradient in `compute` do not
  // count.
  double gradient_tolerance = 1e-4;
};

struct ParityLine {
  std::string kind;         // "logits", "loss", "gradients"
  std::string worst;        // the tensor with the largest difference
  std::size_t tensors = 0;  // compared
  double absolute = 0;      // largest difference
  double relative = 0;      // largest difference over its tensor's largest element
  double tolerance = 0;
  bool within = true;
};

// One line per kind that the case holds. Throws Error(data) for files that are not usable, a gradient of a parameter
// that the model does not have, or a case that holds nothing to compare.
std::vector<ParityLine> run_parity(const ParityOptions& options);

}  // namespace ananke
