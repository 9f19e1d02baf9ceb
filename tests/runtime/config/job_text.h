// A small valid job as text, to be broken by the tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/config/job.h"
#include "tests/temporary_folder.h"

namespace ananke {

inline const char* const valid_job = R"(name: "test"
run_dir: "run"
model {
  vocab_size: 64
  hidden_size: 32
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 2
  num_experts: 8
  num_experts_per_tok: 2
  moe_intermediate_size: 16
}
training {
  steps: 20
  sequence_length: 16
  rows_per_step: 8
}
data { generated { } }
plugins {
  config {
    [ananke/ananke.plugin.Tune] {
      lr: 0.25
      groups { match: "norm" size: 3 }
    }
  }
}
optimizer { use: "tune" }
)";

inline std::filesystem::path config_library() {
  return std::filesystem::path(ANANKE_BINARY_DIR) / "tests/config_library";
}

// The text with the first `from` replaced.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class JobFile {
 public:
  LoadedJob load(const std::string& text, const std::vector<std::string>& overrides = {},
                 std::uint32_t ranks = 0) const {
    return load_job({.file = folder_.write("job.textproto", text),
                     .overrides = overrides,
                     .ranks = ranks,
                     .plugin_folders = {config_library()}});
  }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

}  // namespace ananke
