#include "runtime/checkpoint/huggingface_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ananke/job.pb.h"
#include "ananke/model.pb.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/checkpoint/carried_files.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/data/token_store.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

const std::filesystem::path golden_folder = std::filesystem::path(ANANKE_SOURCE_DIR) / "tests/golden";

Model twelve_experts() {
  Model model;
  model.set_vocab_size(17);
  model.set_hidden_size(6);
  model.set_num_hidden_layers(3);
  model.set_num_attention_heads(2);
  model.set_num_key_value_heads(1);
  model.set_head_dim(4);
  model.set_intermediate_size(5);
  model.set_num_experts(12);
  model.set_num_experts_per_tok(3);
  model.set_moe_intermediate_size(7);
  model.set_norm_topk_prob(true);
  model.set_decoder_sparse_step(1);
  model.add_mlp_only_layers(1);
  model.set_rms_norm_eps(1e-5);
  model.set_rope_theta(1e6 / 3);
  model.set_max_position_embeddings(99);
  model.set_tie_word_embeddings(true);
  model.set_initializer_range(0.03);
  return model;
}

// Expert i is filled with i, everything else with its place in the table.
float value_of(const Parameter& parameter, const ParameterTable& table) {
  return static_cast<float>(parameter.expert >= 0 ? parameter.expert : 100 + table.find(parameter.name));
}

ExportSummary export_filled(const Model& model, const ExportOptions& options) {
  const ParameterTable table(model);
  return export_huggingface(model, options, [&](const Parameter& parameter, std::int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), value_of(parameter, table));
  });
}

std::size_t files_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(HuggingfaceExport, RefusesAFolderThatIsThere) {
  TemporaryFolder folder;
  folder.write("out/some file", "precious");
  EXPECT_NAMES(refusal(ErrorKind::config, [&] { export_filled(twelve_experts(), {folder / "out"}); }),
               "exists already");
  EXPECT_EQ(read_text(folder / "out/some file"), "precious");
  folder.write("file", "");
  refusal(ErrorKind::config, [&] { export_filled(twelve_experts(), {folder / "file"}); });
  refusal(ErrorKind::resource, [&] { export_filled(twelve_experts(), {folder / "file/below"}); });
}

TEST(HuggingfaceExport, LeavesNothingWhenReadingFails) {
  TemporaryFolder folder;
  int left = 20;
  EXPECT_NAMES(refusal(ErrorKind::checkpoint,
                       [&] {
                         export_huggingface(twelve_experts(), {folder / "out"},
                                            [&](const Parameter& parameter, std::int64_t, std::span<float>) {
                                              if (--left == 0) fail(ErrorKind::checkpoint, "no {}", parameter.name);
                                            });
                       }),
               "no model.layers");
  EXPECT_EQ(files_in(folder.path()), 0U);
}

TEST(HuggingfaceExport, KeepsTheNumberOfEveryExpert) {
  TemporaryFolder folder;
  const Model model = twelve_experts();
  const ParameterTable table(model);
  const ExportSummary summary = export_filled(model, {folder / "out", SafetensorsType::f32});
  EXPECT_EQ(summary.files, 1U);
  EXPECT_EQ(summary.tensors, table.parameters().size());
  EXPECT_EQ(files_in(folder.path()), 1U);
  EXPECT_EQ(files_in(folder / "out"), 2U);
  const Safetensors file = Safetensors::open(folder / "out");
  EXPECT_FALSE(file.contains("lm_head.weight")) << "the head is tied";
  for (int layer : {0, 2}) {
    for (int expert = 0; expert < 12; ++expert) {
      for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, matrix);
        EXPECT_EQ(file.read_f32(name), std::vector<float>(42, static_cast<float>(expert))) << name;
      }
    }
  }
  // Experts stand in the order of their numbers: 2 before 10.
  const std::string bytes = read_text(folder / "out/model.safetensors");
  EXPECT_LT(bytes.find("layers.0.mlp.experts.2.gate"), bytes.find("layers.0.mlp.experts.10.gate"));
  const HuggingfaceWeights weights(folder / "out", model, table);
}

std::vector<std::string> names_of(const CarriedFiles& carried) {
  std::vector<std::string> names;
  for (const CarriedFile& file : carried.files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

TEST(HuggingfaceExport, CarriesTheTokenizerOfTheFolderThatTheJobBeganWith) {
  using Names = std::vector<std::string>;
  TemporaryFolder folder;
  folder.write("hf/tokenizer.json", "{\"a\": 1}");
  folder.write("hf/blob", "{\"eos_token_id\": 7}");
  std::filesystem::create_symlink("blob", folder / "hf/generation_config.json");  // as in a download cache
  folder.write("hf/model.safetensors", "large");
  Job job;
  job.set_initial_weights((folder / "hf").string());
  job.mutable_data()->set_tokens((folder / "gone.h5").string());
  const CarriedFiles carried = find_carried_files(job);
  EXPECT_EQ(names_of(carried), (Names{"generation_config.json", "tokenizer.json"}));
  ASSERT_EQ(carried.remarks.size(), 1U);
  EXPECT_NAMES(carried.remarks[0], "tokenizer.json, generation_config.json from " + (folder / "hf").string());

  ExportOptions options{folder / "out"};
  options.files = carried.files;
  options.files.push_back({"tokenizer.model", {}, std::string("\0\1", 2)});
  export_filled(twelve_experts(), options);
  EXPECT_EQ(read_text(folder / "out/tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(read_text(folder / "out/generation_config.json"), "{\"eos_token_id\": 7}");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "out/generation_config.json"));
  EXPECT_EQ(read_text(folder / "out/tokenizer.model"), std::string("\0\1", 2));
  EXPECT_EQ(files_in(folder / "out"), 5U);
  options.output = folder / "none";
  options.files[0].from = folder / "hf/not there";
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { export_filled(twelve_experts(), options); }), "not there");
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
}

TEST(HuggingfaceExport, CarriesTheTokenizerOfTheStoreOrSaysWhyNot) {
  TemporaryFolder folder;
  const auto store = [&](const char* name, const std::string& tokenizer, const std::string& model) {
    TokenStoreWriter writer(folder / name, tokenizer, hash_hex(model), 2, 257);
    if (!model.empty()) writer.keep_tokenizer(model);
    writer.finish("a test", "123", 0);
  };
  const auto of = [&](const std::string& weights, const std::string& tokens) {
    Job job;
    if (!weights.empty()) job.set_initial_weights((folder / weights).string());
    if (!tokens.empty()) job.mutable_data()->set_tokens((folder / tokens).string());
    return find_carried_files(job);
  };
  store("pieces.h5", "sentencepiece", "a model");
  store("bytes.h5", "bytes", "");
  store("older.h5", "sentencepiece", "");
  folder.write("bare/config.json", "{}");
  EXPECT_TRUE(of("", "").files.empty());
  EXPECT_TRUE(of("", "").remarks.empty());
  for (const char* weights : {"", "bare", "gone"}) {
    const CarriedFiles carried = of(weights, "pieces.h5");
    ASSERT_EQ(carried.files.size(), 1U) << weights;
    EXPECT_EQ(carried.files[0].name, "tokenizer.model");
    EXPECT_EQ(carried.files[0].content, "a model");
  }
  EXPECT_NAMES(of("gone", "").remarks.at(0), "is not there any more");
  EXPECT_NAMES(of("bare", "").remarks.at(0), "bare has no tokenizer");
  EXPECT_NAMES(of("", "bytes.h5").remarks.at(0), "tokens are bytes, and 256 ends a document");
  EXPECT_NAMES(of("", "older.h5").remarks.at(0), "does not hold its tokenizer (sentencepiece, hash ");
  EXPECT_NAMES(of("", "none.h5").remarks.at(0), "none.h5");
}

// The end of a SentencePiece model: its normalizer_spec.
std::string model_with_normalizer(const std::string& fields) {
  return std::string("\x0a\x05\x0a\x03the", 7) + "\x1a" + static_cast<char>(fields.size()) + fields;
}

TEST(HuggingfaceExport, SaysWhichClassReadsTheTokenizer) {
  using Names = std::vector<std::string>;
  TemporaryFolder folder;
  const auto carried = [&](const std::string& model, const std::string& weights = "") {
    const auto path = folder / "pieces.h5";
    std::filesystem::remove(path);
    TokenStoreWriter writer(path, "sentencepiece", hash_hex(model), 2, 257);
    writer.keep_tokenizer(model);
    writer.finish("a test", "123", 0);
    Job job;
    job.mutable_data()->set_tokens(path.string());
    if (!weights.empty()) job.set_initial_weights((folder / weights).string());
    return find_carried_files(job);
  };
  const std::string name("\x0a\x08identity", 10);
  const CarriedFiles kept = carried(model_with_normalizer(name + std::string("\x18\x00\x20\x00", 4)));
  EXPECT_EQ(names_of(kept), (Names{"tokenizer.model", "tokenizer_config.json"}));
  EXPECT_EQ(kept.remarks.size(), 1U);
  for (const CarriedFile& file : kept.files) {
    if (file.name != "tokenizer_config.json") continue;
    EXPECT_EQ(Json::parse(file.content, "it").find("tokenizer_class")->text(), "PreTrainedTokenizerFast");
  }
  for (const std::string& other :
       {model_with_normalizer(name), model_with_normalizer(name + std::string("\x18\x00", 2)),
        model_with_normalizer(name + std::string("\x18\x01\x20\x00", 4)), std::string("\xff\xff no model")}) {
    const CarriedFiles alone = carried(other);
    EXPECT_EQ(names_of(alone), (Names{"tokenizer.model"}));
    ASSERT_EQ(alone.remarks.size(), 2U);
    EXPECT_NAMES(alone.remarks[0] + alone.remarks[1], "no tokenizer_config.json");
  }
  folder.write("hf/tokenizer_config.json", "{}");  // of the folder that the job began with: it stays
  const CarriedFiles both = carried(model_with_normalizer(name + std::string("\x18\x00\x20\x00", 4)), "hf");
  EXPECT_EQ(names_of(both), (Names{"tokenizer.model", "tokenizer_config.json"}));
}

TEST(HuggingfaceExport, ReadsBackAsTheSameModel) {
  TemporaryFolder folder;
  Model model = twelve_experts();
  export_filled(model, {folder / "moe"});
  EXPECT_EQ(read_huggingface_config(folder / "moe").DebugString(), model.DebugString());
  model.set_num_experts(0);
  for (const char* field :
       {"num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"}) {
    model.GetReflection()->ClearField(&model, Model::descriptor()->FindFieldByName(field));
  }
  export_filled(model, {folder / "dense"});
  EXPECT_NAMES(read_text(folder / "dense/config.json"), "\"qwen3\"");
  const Model dense = read_huggingface_config(folder / "dense");
  EXPECT_EQ(dense.num_experts(), 0U);
  EXPECT_EQ(dense.intermediate_size(), 5U);
  EXPECT_EQ(dense.rope_theta(), model.rope_theta());
}

// Twelve experts behind a dense layer, chosen by sigmoids within groups.
Model sigmoid_model() {
  Model model = twelve_experts();
  model.set_mlp_only_layers(0, 0);
  model.set_scoring_func(Model::SIGMOID);
  model.set_routed_scaling_factor(2.5);
  model.set_group_routing(Model::GROUPS_LIMITED_TOP_K);
  model.set_n_group(4);
  model.set_topk_group(2);
  model.set_e_score_correction_bias(true);
  return model;
}

TEST(HuggingfaceExport, OfASigmoidRouterIsADots1WithItsBias) {
  TemporaryFolder folder;
  const Model model = sigmoid_model();
  export_filled(model, {folder / "out"});
  Model read_back = read_huggingface_config(folder / "out");
  read_back.set_decoder_sparse_step(1);  // no key of that family, which is its default
  EXPECT_EQ(read_back.DebugString(), model.DebugString());
  const Safetensors file = Safetensors::open(folder / "out");
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  EXPECT_EQ(file.info(bias).dtype, "F32") << "exact even where weights are bf16";
  EXPECT_EQ(file.read_f32(bias), std::vector<float>(12, 99.0F));
  EXPECT_EQ(file.info("model.layers.2.mlp.shared_experts.gate_proj.weight").shape, (std::vector<std::int64_t>{0, 6}));
  EXPECT_FALSE(file.contains("model.layers.0.mlp.gate.e_score_correction_bias"));
  const ParameterTable table(model);
  const HuggingfaceWeights weights(folder / "out", model, table);
  std::vector<float> read(12);
  weights.read(bias, read);
  EXPECT_EQ(read, std::vector<float>(12, 99.0F));
}

TEST(HuggingfaceExport, RefusesARouterThatNoFamilyHas) {
  TemporaryFolder folder;
  const auto refused = [&](auto change) {
    Model model = sigmoid_model();
    change(model);
    return refusal(ErrorKind::config, [&] { export_filled(model, {folder / "out"}); });
  };
  EXPECT_NAMES(refused([](Model& m) { m.set_scoring_func(Model::SOFTMAX); }), "group_routing");
  EXPECT_NAMES(refused([](Model& m) { m.set_group_routing(Model::TOP_K_PER_GROUP); }), "TOP_K_PER_GROUP");
  EXPECT_NAMES(refused([](Model& m) { m.set_mlp_only_layers(0, 1); }), "dense layers");
  const auto softmax = [](Model& m) {
    m.set_scoring_func(Model::SOFTMAX);
    m.set_group_routing(Model::NO_GROUPS);
  };
  EXPECT_NAMES(refused(softmax), "e_score_correction_bias");
  EXPECT_NAMES(refused([&](Model& m) {
                 softmax(m);
                 m.set_e_score_correction_bias(false);
               }),
               "routed_scaling_factor is 2.5");
  EXPECT_EQ(files_in(folder.path()), 0U);
}

TEST(HuggingfaceExport, CutsShardsBySizeAndListsThem) {
  TemporaryFolder folder;
  const Model model = twelve_experts();
  const ParameterTable table(model);
  const ExportSummary summary = export_filled(model, {folder / "out", SafetensorsType::bf16, 1000});
  EXPECT_EQ(summary.bytes, static_cast<std::uint64_t>(table.total()) * 2);
  EXPECT_GT(summary.files, 5U);
  EXPECT_EQ(files_in(folder / "out"), summary.files + 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out")) {
    if (entry.path().extension() != ".safetensors") continue;
    EXPECT_NAMES(entry.path().filename().string(), fmt::format("-of-{:05}", summary.files));
    const Safetensors shard = Safetensors::open(entry.path());
    std::uint64_t bytes = 0;
    for (const std::string& name : shard.names()) bytes += shard.info(name).bytes;
    EXPECT_LE(bytes, 1000U) << entry.path();
  }
  const Safetensors all = Safetensors::open(folder / "out");
  for (const Parameter& parameter : table.parameters()) {
    EXPECT_EQ(all.info(parameter.name).dtype, "BF16");
    EXPECT_EQ(all.read_f32(parameter.name).back(), value_of(parameter, table)) << parameter.name;
  }
  // A tensor larger than a shard has a shard of its own.
  EXPECT_EQ(export_filled(model, {folder / "each", SafetensorsType::f32, 1}).files, table.parameters().size());
}

TEST(HuggingfaceExport, OfAnImportInFp32IsTheSameBytes) {
  for (const char* name : {"qwen3_moe_a", "qwen3_moe_dense_mix", "qwen3_moe_tied_mqa", "qwen3_moe_unnormalised"}) {
    TemporaryFolder folder;
    const Model model = read_huggingface_config(golden_folder / name);
    const ParameterTable table(model);
    const HuggingfaceWeights weights(golden_folder / name, model, table);
    export_huggingface(model, {folder / "out", SafetensorsType::f32},
                       [&](const Parameter& parameter, std::int64_t begin, std::span<float> out) {
                         weights.read(parameter.name, out, begin);
                       });
    EXPECT_EQ(read_huggingface_config(folder / "out").DebugString(), model.DebugString());
    const Safetensors before = Safetensors::open(golden_folder / name / "model.safetensors");
    const Safetensors after = Safetensors::open(folder / "out");
    for (const std::string& tensor : after.names()) {
      EXPECT_EQ(after.info(tensor).dtype, "F32");
      EXPECT_EQ(after.info(tensor).shape, before.info(tensor).shape) << tensor;
      EXPECT_EQ(after.read_f32(tensor), before.read_f32(tensor)) << tensor;
    }
    EXPECT_EQ(after.names().size(), table.parameters().size());
  }
}

}  // namespace
}  // namespace ananke
