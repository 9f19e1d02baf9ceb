#include "tests/golden/optimizer_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/optimizer.h"
#include "tests/golden/hyper.h"
#include "tests/test_gpus.h"

namespace ananke::golden {
namespace {

// Of the parameter's largest element, at least of 1. An iteration in bf16 ends where the order of its sums takes it, so
// it is judged by how far the parameter moved: bf16 has 8 bits, and 5 steps amplify what was rounded.
struct Tolerance {
  double of_size = 1e-6, of_movement = 0;
};

Tolerance tolerance_of(const Json& hyper) {
  const Json* precision = hyper.find("newton_schulz");
  if (!precision) return {};
  if (precision->is(Json::Type::string) && precision->text() == "bfloat16") return {0, 0.02};
  return {1e-5, 0};
}

std::string param(int i, int step) { return fmt::format("param.{}.step{}", i, step); }
std::string grad(int i, int step) { return fmt::format("grad.{}.step{}", i, step); }

Shape shape_of(const SafetensorsInfo& info, const std::string& name) {
  const auto& s = info.shape;
  switch (s.size()) {
    case 0: return {};
    case 1: return {s[0]};
    case 2: return {s[0], s[1]};
    case 3: return {s[0], s[1], s[2]};
    case 4: return {s[0], s[1], s[2], s[3]};
    default: fail(ErrorKind::data, "{} has {} dimensions; at most 4 are offered", name, s.size());
  }
}

// Every tensor of the case is F32 and belongs to a parameter and step that are whole; returns {parameters, steps}.
std::pair<int, int> check_case(const Safetensors& tensors) {
  int parameters = 0, steps = 0;
  while (tensors.contains(param(parameters, 0))) ++parameters;
  while (tensors.contains(param(0, steps + 1))) ++steps;
  if (parameters == 0 || steps == 0) {
    fail(ErrorKind::data, "{}: no {} or no {}; a case starts with both", tensors.path(), param(0, 0), param(0, 1));
  }
  for (int i = 0; i < parameters; ++i) {
    for (int k = 0; k <= steps; ++k) {
      for (const std::string& name : {param(i, k), k > 0 ? grad(i, k) : param(i, k)}) {
        const SafetensorsInfo& info = tensors.info(name);
        if (info.dtype != "F32") fail(ErrorKind::data, "{}: {} is {}, not F32", tensors.path(), name, info.dtype);
        if (info.shape != tensors.info(param(i, 0)).shape) {
          fail(ErrorKind::data, "{}: {} is {}, {} {}", tensors.path(), name, to_string(info.shape), param(i, 0),
               to_string(tensors.info(param(i, 0)).shape));
        }
      }
    }
  }
  const auto expected = static_cast<std::size_t>(parameters) * static_cast<std::size_t>(2 * steps + 1);
  if (tensors.names().size() != expected) {
    fail(ErrorKind::data, "{}: {} tensors where {} parameters of {} steps have {}", tensors.path(),
         tensors.names().size(), parameters, steps, expected);
  }
  return {parameters, steps};
}

// One parameter on the device, with its states.
class Subject {
 public:
  Subject(Backend& backend, Optimizer& optimizer, int index, Shape shape)
      : backend_(backend),
        optimizer_(optimizer),
        parameter_{fmt::format("param.{}", index),
                   shape,
                   shape.rank() == 2 ? ParameterKind::matrix : ParameterKind::norm,
                   0,
                   0,
                   -1},
        state_count_(optimizer.states(parameter_).size()) {
    const auto n = static_cast<std::size_t>(elements());
    const std::size_t bytes = (2 + state_count_) * align(n * sizeof(float)) + 2 * alignment;
    memory_ = backend.device().memory().allocate(bytes, "golden case");
    host_ = backend.device().host_memory().allocate(std::max(n, std::size_t{1}) * sizeof(float), "golden case");
    backend.device().zero(stream(), memory_.data(), memory_.bytes());
    const float scale = 1;
    const std::int32_t finite = 1;
    put(&scale, sizeof scale, memory_.view(DType::f32, {1}, bytes - 2 * alignment));
    put(&finite, sizeof finite, memory_.view(DType::i32, {1}, bytes - alignment));
  }
  std::int64_t elements() const { return parameter_.shape.elements(); }
  TensorView tensor(std::size_t number) const {  // 0: weight, 1: gradient, then states
    return memory_.view(DType::f32, {elements()}, number * align(static_cast<std::size_t>(elements()) * sizeof(float)));
  }
  void set(std::size_t number, const std::vector<float>& values) {
    put(values.data(), values.size() * sizeof(float), tensor(number));
  }
  void step(int number) {
    std::vector<TensorView> states;
    for (std::size_t s = 0; s < state_count_; ++s) states.push_back(tensor(2 + s));
    const TensorView finite = memory_.view(DType::i32, {1}, memory_.bytes() - alignment);
    const OptimizerUpdate all{parameter_, 0,
                              tensor(0),  tensor(1),
                              states,     static_cast<std::uint64_t>(number),
                              1.0,        memory_.view(DType::f32, {1}, memory_.bytes() - 2 * alignment),
                              finite};
    if (optimizer_.layout(parameter_) == OptimizerLayout::any_fragment) {
      optimizer_.update(stream(), backend_.operators(), all);
      return;
    }
    const std::int64_t rows = optimizer_.matrix_rows(parameter_), columns = parameter_.shape[1];
    const Shape shape{parameter_.shape[0] / rows, rows, columns};
    const std::size_t bytes = optimizer_.transform_workspace(backend_.operators(), shape[0], rows, columns);
    Arena& memory = backend_.device().memory();
    const Buffer workspace = memory.allocate(bytes, "golden case"),
                 matrices = memory.allocate(tensor(0).bytes(), "golden case");
    const TensorView direction = matrices.view(DType::f32, {elements()});
    optimizer_.prepare(stream(), backend_.operators(), all, direction);
    optimizer_.transform(stream(), backend_.operators(),
                         {direction.reshaped(shape), {workspace.data(), bytes}, finite});
    optimizer_.apply(stream(), backend_.operators(), all, direction);
    stream().synchronize();  // the buffers end here
  }
  std::vector<float> weight() const {
    std::vector<float> values(static_cast<std::size_t>(elements()));
    if (!values.empty()) backend_.device().read(tensor(0), values.data());
    return values;
  }

 private:
  static constexpr std::size_t alignment = 256;
  static std::size_t align(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }
  Stream& stream() const { return backend_.device().stream(Resource::compute); }
  void put(const void* values, std::size_t bytes, const TensorView& to) {
    if (bytes == 0) return;
    std::memcpy(host_.data(), values, bytes);
    backend_.device().copy(stream(), to.data, host_.data(), bytes);
    stream().synchronize();
  }
  Backend& backend_;
  Optimizer& optimizer_;
  Parameter parameter_;
  std::size_t state_count_;
  Buffer memory_, host_;
};

struct Difference {
  double absolute = 0;
  double largest = 0;  // recorded element
  double moved = 0;    // the most that an element moved
};

void compare(const std::vector<float>& ours, const std::vector<float>& recorded, const std::vector<float>& start,
             Difference& worst) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(static_cast<double>(ours[i]) - recorded[i]);
    // NaN compares with nothing: it counts as infinitely far.
    worst.absolute = std::isnan(difference) ? INFINITY : std::max(worst.absolute, difference);
    worst.largest = std::max(worst.largest, std::abs(static_cast<double>(recorded[i])));
    worst.moved = std::max(worst.moved, std::abs(static_cast<double>(recorded[i]) - start[i]));
  }
}

// Of an iteration in bf16: times as far from the case in float64 as torch's is.
constexpr double most_of_torch = 2.5;

// The same case in float64, of one in bf16: "muon_original" of "muon_original_bf16".
std::optional<Safetensors> exact_case(const std::filesystem::path& folder) {
  constexpr std::string_view ending = "_bf16";
  const std::string name = folder.filename().string();
  if (!name.ends_with(ending)) return std::nullopt;
  const auto file = folder.parent_path() / name.substr(0, name.size() - ending.size()) / "case.safetensors";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return Safetensors::open(file);
}

const FoundPlugin& find(const PluginCatalog& catalog, const std::string& name) {
  const FoundPlugin* plugin = catalog.find_by_name(name);
  if (!plugin) fail(ErrorKind::plugin, "no plugin {} in this build", name);
  return *plugin;
}

}  // namespace

std::string optimizer_of(const std::filesystem::path& folder) {
  const Json hyper = read_hyper(folder);
  const Json* name = hyper.find("optimizer");
  if (!name || !name->is(Json::Type::string) || name->text().empty()) {
    fail(ErrorKind::data, "{}/hyper.json: \"optimizer\" does not say which", folder.string());
  }
  return name->text();
}

bool run_optimizer_case(const std::filesystem::path& folder, const PluginCatalog& catalog) {
  const FoundPlugin found = find(catalog, optimizer_of(folder));
  const Json hyper = read_hyper(folder);
  const std::string config = make_config(hyper, *found.note);
  const Tolerance tolerance = tolerance_of(hyper);
  const Safetensors tensors = Safetensors::open(folder / "case.safetensors");
  const auto [parameters, steps] = check_case(tensors);
  const std::optional<Safetensors> exact = exact_case(folder);

  const Job job;
  const Site site;
  const RoleContext context{job, site, {}, 0};
  PluginRegistry plugins;
  const std::string backend_name = test_backend(1);
  plugins.load(backend_name, find(catalog, backend_name).file);
  plugins.load(found.note->name(), found.file);
  const auto backend = plugins.create<Backend>(backend_name, context, "");
  const auto optimizer = plugins.create<Optimizer>(found.note->name(), context, config);

  bool within = true;
  for (int i = 0; i < parameters; ++i) {
    Subject subject(*backend, *optimizer, i, shape_of(tensors.info(param(i, 0)), param(i, 0)));
    const std::vector<float> start = tensors.read_f32(param(i, 0));
    subject.set(0, start);
    Difference worst, ours_of_exact, theirs_of_exact;
    for (int k = 1; k <= steps; ++k) {
      subject.set(1, tensors.read_f32(grad(i, k)));
      subject.step(k);
      const std::vector<float> ours = subject.weight(), theirs = tensors.read_f32(param(i, k));
      compare(ours, theirs, start, worst);
      if (!exact) continue;
      compare(ours, exact->read_f32(param(i, k)), start, ours_of_exact);
      compare(theirs, exact->read_f32(param(i, k)), start, theirs_of_exact);
    }
    const double allowed = tolerance.of_size * std::max(1.0, worst.largest) + tolerance.of_movement * worst.moved;
    const bool near_enough = ours_of_exact.absolute <= most_of_torch * theirs_of_exact.absolute;
    const bool good = exact ? near_enough : worst.absolute <= allowed;
    if (exact) {
      std::printf("param.%d: from the case in float64 ours is off by %.3g, torch's by %.3g, allowed %.3g%s\n", i,
                  ours_of_exact.absolute, theirs_of_exact.absolute, most_of_torch * theirs_of_exact.absolute,
                  near_enough ? "" : "  TOO FAR");
    }
    std::printf("param.%d: %lld elements, %d steps, moved by %.3g, largest difference %.3g of %.3g, allowed %.3g%s\n",
                i, static_cast<long long>(subject.elements()), steps, worst.moved, worst.absolute, worst.largest,
                allowed, good ? "" : "  TOO FAR");
    within = within && good;
  }
  return within;
}

}  // namespace ananke::golden
