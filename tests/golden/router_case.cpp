#include "tests/golden/router_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/backend.h"
#include "tests/test_gpus.h"

namespace ananke::golden {
namespace {

constexpr double tolerance = 2e-6;  // of the tensor's largest element

// As DeepSeek-V3's configuration names things.
RouterRule read_rule(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "router.json";
  std::ifstream stream(path);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const Json json = Json::parse(text, path.string());
  const auto get = [&](const char* key) -> const Json& {
    const Json* value = json.find(key);
    if (!value) fail(ErrorKind::data, "{}: {} is missing", path.string(), key);
    return *value;
  };
  const auto whole = [&](const char* key) {
    const auto number = get(key).as_unsigned();
    if (!number || *number == 0) fail(ErrorKind::data, "{}: {} is no number from 1", path.string(), key);
    return static_cast<std::int64_t>(*number);
  };
  RouterRule rule;
  rule.score = RouterRule::Score::sigmoid;
  rule.normalise = get("norm_topk_prob").boolean();
  rule.scaling_factor = get("routed_scaling_factor").as_double().value_or(std::nan(""));
  rule.groups = whole("n_group");
  rule.kept_groups = whole("topk_group");
  if (rule.groups > 1) rule.grouping = RouterRule::Grouping::groups_limited_top_k;
  return rule;
}

// The case's tensors and results on a device.
class Memory {
 public:
  explicit Memory(Device& device) : device_(device), stream_(device.stream(Resource::compute)) {}

  template <class T>
  TensorView place(const std::vector<T>& values, Shape shape) {
    const std::size_t bytes = values.size() * sizeof(T);
    Buffer& to = buffers_.emplace_back(device_.memory().allocate(bytes, "golden case"));
    Buffer from = device_.host_memory().allocate(bytes, "golden case");
    std::memcpy(from.data(), values.data(), bytes);
    device_.copy(stream_, to.data(), from.data(), bytes);
    stream_.synchronize();
    return to.view(dtype_of<T>(), shape);
  }
  Region region(std::size_t bytes) {
    Buffer& buffer = buffers_.emplace_back(device_.memory().allocate(bytes, "golden case"));
    return {buffer.data(), bytes};
  }
  template <class T>
  std::vector<T> values(const TensorView& view) {
    std::vector<T> result(static_cast<std::size_t>(view.elements()));
    device_.read(view, result.data());
    return result;
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<Buffer> buffers_;
};

bool close(const char* name, const std::vector<float>& ours, const std::vector<float>& recorded) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(static_cast<double>(ours[i]) - static_cast<double>(recorded[i]));
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    largest = std::max(largest, std::abs(static_cast<double>(recorded[i])));
  }
  const bool good = ours.size() == recorded.size() && worst <= tolerance * largest;
  std::printf("%-9s largest difference %.3g of %.3g%s\n", name, worst, largest, good ? "" : "  TOO FAR");
  return good;
}

Router::Sizes sizes_of(const Safetensors& tensors) {
  const auto& x = tensors.info("x").shape;
  const auto& gate = tensors.info("gate").shape;
  const auto& indices = tensors.info("indices").shape;
  if (x.size() != 2 || gate.size() != 2 || indices.size() != 2 || x[1] != gate[1] || x[0] != indices[0]) {
    fail(ErrorKind::data, "{}: x {}, gate {} and indices {} do not fit together", tensors.path(), to_string(x),
         to_string(gate), to_string(indices));
  }
  return {x[0], x[1], gate[0], indices[1]};
}

// Choices of a token by expert, as the recorded ones stand: (expert, place among ours).
using Order = std::vector<std::pair<std::int32_t, std::int64_t>>;

Order sorted_choices(const std::vector<std::int32_t>& indices, std::int64_t k) {
  Order order;
  for (std::size_t slot = 0; slot < indices.size(); ++slot) {
    order.emplace_back(indices[slot], static_cast<std::int64_t>(slot));
  }
  for (auto token = order.begin(); token != order.end(); token += k) std::sort(token, token + k);
  return order;
}

}  // namespace

bool run_router_case(const std::filesystem::path& folder, const PluginCatalog& catalog) {
  const RouterRule rule = read_rule(folder);
  const Safetensors tensors = Safetensors::open(folder / "case.safetensors");
  const Router::Sizes n = sizes_of(tensors);
  const Job job;
  const Site site;
  const RoleContext context{job, site, {}, 0};
  const std::string name = test_backend(1);
  const FoundPlugin* found = catalog.find_by_name(name);
  if (!found) fail(ErrorKind::plugin, "no plugin {} in this build", name);
  PluginRegistry plugins;
  plugins.load(name, found->file);
  const auto backend = plugins.create<Backend>(name, context, "");
  Router& router = *backend->operators().router;
  Stream& stream = backend->device().stream(Resource::compute);
  Memory memory(backend->device());

  const Shape slots{n.tokens, n.k};
  const TensorView x = memory.place(tensors.read_f32("x"), {n.tokens, n.hidden});
  const TensorView gate = memory.place(tensors.read_f32("gate"), {n.experts, n.hidden});
  const TensorView bias = memory.place(tensors.read_f32("bias"), {n.experts});
  const TensorView indices =
      memory.place(std::vector<std::int32_t>(static_cast<std::size_t>(slots.elements()), -1), slots);
  const TensorView weights = memory.place(std::vector<float>(static_cast<std::size_t>(slots.elements())), slots);
  const TensorView counts = memory.place(std::vector<std::int32_t>(static_cast<std::size_t>(n.experts)), {n.experts});
  const Region saved = memory.region(router.saved(n)), workspace = memory.region(router.workspace(n));
  router.forward(stream, {x, gate, bias, rule, false, indices, weights, counts, {}, saved, workspace});

  const Order order = sorted_choices(memory.values<std::int32_t>(indices), n.k);
  const std::vector<std::int32_t> recorded = tensors.read_i32("indices");
  const std::vector<float> our_weights = memory.values<float>(weights),
                           recorded_dweights = tensors.read_f32("dweights");
  std::vector<float> by_expert(our_weights.size()), dweights(our_weights.size());
  std::size_t wrong = 0;
  for (std::size_t slot = 0; slot < order.size(); ++slot) {
    const auto [expert, place] = order[slot];
    wrong += expert != recorded[slot];
    by_expert[slot] = our_weights[static_cast<std::size_t>(place)];
    dweights[static_cast<std::size_t>(place)] = recorded_dweights[slot];
  }
  std::printf("%zu of %zu choices are not the recorded ones\n", wrong, order.size());

  const TensorView dx = memory.place(std::vector<float>(static_cast<std::size_t>(x.elements())), x.shape);
  const TensorView dgate = memory.place(std::vector<float>(static_cast<std::size_t>(gate.elements())), gate.shape);
  router.backward(stream,
                  {x, gate, rule, indices, weights, memory.place(dweights, slots), {}, dx, dgate, saved, workspace});
  bool good = wrong == 0;
  good = close("weights", by_expert, tensors.read_f32("weights")) && good;
  good = close("grad.x", memory.values<float>(dx), tensors.read_f32("grad.x")) && good;
  return close("grad.gate", memory.values<float>(dgate), tensors.read_f32("grad.gate")) && good;
}

}  // namespace ananke::golden
