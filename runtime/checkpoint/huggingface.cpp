#include "runtime/checkpoint/huggingface.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "ananke/model.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr const char* embedding_name = "model.embed_tokens.weight";
constexpr const char* head_name = "lm_head.weight";

bool equal(std::span<const std::int64_t> stored, const Shape& shape) {
  if (static_cast<int>(stored.size()) != shape.rank()) return false;
  for (int i = 0; i < shape.rank(); ++i) {
    if (stored[static_cast<std::size_t>(i)] != shape[i]) return false;
  }
  return true;
}

// An expert's matrix inside the tensor of all experts of its layer.
struct Stacked {
  std::string tensor;
  std::int64_t expert;
  std::int64_t matrices;  // per expert in that tensor: 2 in gate_up_proj
  std::int64_t matrix;    // which of them
};

std::optional<Stacked> stacked_place(const std::string& name) {
  constexpr std::string_view marker = "mlp.experts.";
  const std::size_t at = name.rfind(marker);
  if (at == std::string::npos) return {};
  const char* digits = name.data() + at + marker.size();
  const char* end = name.data() + name.size();
  std::int64_t expert = 0;
  const auto parsed = std::from_chars(digits, end, expert);
  if (parsed.ec != std::errc{} || expert < 0) return {};
  const std::string_view rest(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  const std::string prefix = name.substr(0, at + marker.size());
  if (rest == ".gate_proj.weight") return Stacked{prefix + "gate_up_proj", expert, 2, 0};
  if (rest == ".up_proj.weight") return Stacked{prefix + "gate_up_proj", expert, 2, 1};
  if (rest == ".down_proj.weight") return Stacked{prefix + "down_proj", expert, 1, 0};
  return {};
}

StoredParameter find_in_stack(const Safetensors& tensors, const std::string& name, const Stacked& place,
                              const Shape& shape) {
  const SafetensorsInfo& info = tensors.info(place.tensor);
  const bool fits = info.shape.size() == 3 && shape.rank() == 2 && info.shape[1] == place.matrices * shape[0] &&
                    info.shape[2] == shape[1];
  if (!fits || place.expert >= info.shape[0]) {
    fail(ErrorKind::data,
         "{}: tensor {} has shape {}, which does not hold {} of shape {}: [experts, {}, {}] is expected",
         tensors.path(), place.tensor, to_string(info.shape), name, to_string(shape),
         place.matrices * (shape.rank() > 0 ? shape[0] : 0), shape.rank() > 1 ? shape[1] : 0);
  }
  return {place.tensor, (place.expert * place.matrices + place.matrix) * shape.elements(), shape.elements()};
}

}  // namespace

StoredParameter find_stored(const Safetensors& tensors, const std::string& name, const Shape& shape) {
  const auto place = stacked_place(name);
  const bool stacked = place && tensors.contains(place->tensor);
  if (stacked && tensors.contains(name)) {
    fail(ErrorKind::data, "{} holds both {} and {}: which one counts is unclear", tensors.path(), name, place->tensor);
  }
  if (stacked) return find_in_stack(tensors, name, *place, shape);
  const SafetensorsInfo& info = tensors.info(name);
  if (!equal(info.shape, shape)) {
    fail(ErrorKind::data, "{}: tensor {} has shape {}, but the config makes it {}", tensors.path(), name,
         to_string(info.shape), to_string(shape));
  }
  return {name, 0, shape.elements()};
}

namespace {

// Experts of a stack that the model does not have would be dropped without a word.
void check_expert_count(const Safetensors& tensors, const Model& model, const StoredParameter& stored) {
  const SafetensorsInfo& info = tensors.info(stored.tensor);
  if (info.shape.size() == 3 && info.shape[0] != static_cast<std::int64_t>(model.num_experts())) {
    fail(ErrorKind::data, "{}: tensor {} holds {} experts, but the config has {}", tensors.path(), stored.tensor,
         info.shape[0], model.num_experts());
  }
}

void check_tied_head(const Safetensors& tensors) {
  const std::vector<float> head = tensors.read_f32(head_name);
  if (!(tensors.info(head_name).shape == tensors.info(embedding_name).shape &&
        head == tensors.read_f32(embedding_name))) {
    fail(ErrorKind::data, "{}: tie_word_embeddings is true, but {} differs from {}", tensors.path(), head_name,
         embedding_name);
  }
}

}  // namespace

HuggingfaceWeights::HuggingfaceWeights(const std::filesystem::path& path, const Model& model,
                                       const ParameterTable& table)
    : tensors_(Safetensors::open(path)) {
  std::set<std::string> used;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.name == head_name && !tensors_.contains(head_name)) {
      fail(ErrorKind::data, "{} has no {}, but tie_word_embeddings is false in the config", tensors_.path(), head_name);
    }
    StoredParameter stored = find_stored(tensors_, parameter.name, parameter.shape);
    if (used.insert(stored.tensor).second) check_expert_count(tensors_, model, stored);
    stored_.emplace(parameter.name, std::move(stored));
  }
  for (const Parameter& bias : table.buffers()) {
    if (!tensors_.contains(bias.name)) {
      stored_.emplace(bias.name, StoredParameter{"", 0, bias.shape.elements()});
      continue;
    }
    stored_.emplace(bias.name, find_stored(tensors_, bias.name, bias.shape));
    used.insert(bias.name);
  }
  if (model.tie_word_embeddings() && tensors_.contains(head_name) && used.insert(head_name).second)
    check_tied_head(tensors_);
  for (const std::string& name : tensors_.names()) {
    if (used.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    const std::vector<std::int64_t>& shape = tensors_.info(name).shape;
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) continue;  // shared experts of width 0
    fail(ErrorKind::data,
         "{}: tensor {} {} belongs to no parameter of this model, which cannot be what its config means",
         tensors_.path(), name, to_string(tensors_.info(name).shape));
  }
}

void HuggingfaceWeights::read(const std::string& name, std::span<float> out, std::int64_t begin) const {
  const auto found = stored_.find(name);
  ANANKE_CHECK(found != stored_.end(), "{} is not a parameter of this model", name);
  const StoredParameter& stored = found->second;
  ANANKE_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= stored.elements,
               "{} has {} elements, asked for {} from {}", name, stored.elements, out.size(), begin);
  if (stored.tensor.empty()) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  tensors_.read_f32(stored.tensor, out, stored.begin + begin);
}

}  // namespace ananke
