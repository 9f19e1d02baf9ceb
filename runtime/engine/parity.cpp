#include "runtime/engine/parity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/comm/rank_processes.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/engine/batch_loader.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/initial_weights.h"
#include "runtime/engine/stored_values.h"
#include "runtime/plugin/catalog.h"
#include "runtime/plugin/registry.h"

namespace ananke {
namespace {

struct Case {
  std::int64_t rows = 0, length = 0, vocabulary = 0;
  std::vector<std::int32_t> ids;
  std::int64_t targets() const { return rows * (length - 1); }
};

// What all ranks together compute: fragments and rows of different ranks do not overlap.
class Computed {
 public:
  Computed(const Case& parity, const ParameterTable& table)
      : logits_(static_cast<std::size_t>(parity.rows * parity.length * parity.vocabulary)),
        memory_(loss_floats + logits_ + elements_of(table)) {
    std::size_t at = loss_floats + logits_;
    for (const Parameter& parameter : table.parameters()) {
      gradients_[parameter.name] = at;
      at += static_cast<std::size_t>(parameter.shape.elements());
    }
  }
  double loss() const {
    double value = 0;
    std::memcpy(&value, memory_.all().data(), sizeof value);
    return value;
  }
  void set_loss(double value) const { std::memcpy(memory_.all().data(), &value, sizeof value); }
  std::span<float> logits() const { return memory_.all().subspan(loss_floats, logits_); }  // [B, S, V]
  std::span<float> gradient(const Parameter& parameter) const {
    return memory_.all().subspan(gradients_.at(parameter.name), static_cast<std::size_t>(parameter.shape.elements()));
  }

 private:
  static constexpr std::size_t loss_floats = sizeof(double) / sizeof(float);
  static std::size_t elements_of(const ParameterTable& table) {
    std::size_t sum = 0;
    for (const Parameter& parameter : table.parameters()) sum += static_cast<std::size_t>(parameter.shape.elements());
    return sum;
  }
  std::size_t logits_;
  SharedFloats memory_;
  std::map<std::string, std::size_t> gradients_;  // where they begin, by parameter
};

Case read_case(const Safetensors& file, const Model& model) {
  Case parity;
  const SafetensorsInfo& info = file.info("input_ids");
  if (info.shape.size() != 2 || info.shape[0] < 1 || info.shape[1] < 2) {
    fail(ErrorKind::data, "{}: input_ids is {}, expected [rows, at least 2 tokens]", file.path(),
         to_string(info.shape));
  }
  parity.rows = info.shape[0];
  parity.length = info.shape[1];
  parity.vocabulary = model.vocab_size();
  parity.ids = file.read_i32("input_ids");
  for (std::size_t i = 0; i < parity.ids.size(); ++i) {
    if (parity.ids[i] >= 0 && parity.ids[i] < parity.vocabulary) continue;
    fail(ErrorKind::data, "{}: input_ids[{}] is {}, outside the model's vocabulary of {}", file.path(), i,
         parity.ids[i], parity.vocabulary);
  }
  return parity;
}

// Rows rank, rank + ranks, ...; every row one document, labels shifted by one.
Rows rows_of_rank(const Case& parity, int rank, int ranks) {
  Rows rows;
  rows.row_length = parity.length;
  for (std::int64_t row = rank; row < parity.rows; row += ranks) {
    const std::int32_t* ids = parity.ids.data() + row * parity.length;
    for (std::int64_t i = 0; i < parity.length; ++i) {
      rows.tokens.push_back(ids[i]);
      rows.targets.push_back(i + 1 < parity.length ? ids[i + 1] : -1);
      rows.positions.push_back(static_cast<std::int32_t>(i));
    }
    rows.segments.push_back({0});
    rows.valid_targets += parity.length - 1;
    ++rows.rows;
  }
  return rows;
}

void collect_gradients(Engine& engine, const Computed& computed) {
  for (const OwnedFragment& fragment : engine.parameters().fragments()) {
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    read_f32(engine.device(), fragment.gradient, computed.gradient(parameter).data() + fragment.where.begin);
  }
}

void run_rank(const ParityOptions& options, const Job& job, const Case& parity, int rank, Rendezvous& rendezvous,
              const std::vector<FoundPlugin>& plugins, const Computed& computed) {
  const Site site;
  const MeshShape mesh{options.replicate, options.ranks / options.replicate, options.expert};
  const RoleContext context{job, site, mesh, rank, options.ranks};
  PluginRegistry registry;
  for (const FoundPlugin& plugin : plugins) registry.load(plugin.note->name(), plugin.file);
  Engine engine(make_roles(job, registry, context), context, rendezvous);

  const std::int64_t most_rows = (parity.rows + options.ranks - 1) / options.ranks;
  PassLimits limits;
  limits.tokens = most_rows * parity.length;
  limits.longest = limits.positions = parity.length;
  if (options.recompute) limits.recompute = Recompute::everything(job.model().num_hidden_layers());
  engine.start(limits);
  load_weights(engine.device(), engine.table(), engine.parameters().fragments(),
               HuggingfaceWeights(options.folder, job.model(), engine.table()), engine.routers().biases());
  engine.parameters().updated();

  const Rows rows = rows_of_rank(parity, rank, options.ranks);
  BatchLoader loader(engine.device(), 1, most_rows, parity.length);
  const std::vector<DeviceBatch>& batches = loader.load(engine.compute(), rows);
  StepScalars scalars(engine.backend(), engine.world());
  scalars.begin(rows.valid_targets, false);
  Buffer logits_memory = engine.device().memory().allocate(
      static_cast<std::size_t>(limits.tokens * parity.vocabulary) * sizeof(float), "logits");
  const Settling settling(engine);
  const TensorView logits[] = {logits_memory.view(DType::f32, {batches[0].tokens, parity.vocabulary})};
  engine.pass().run(training_schedule(engine.table(), 1, LoopOrder::microbatch_outer), batches,
                    {scalars.loss(), scalars.loss_scale(), logits, false, scalars.router_losses()});
  scalars.agree(0);
  const StepScalars::Outcome outcome = scalars.read();

  const std::int64_t row_elements = parity.length * parity.vocabulary;
  for (std::int64_t local = 0; local < rows.rows; ++local) {
    const std::int64_t row = local * options.ranks + rank;
    engine.device().read(logits[0].slice(local * row_elements, row_elements),
                         computed.logits().data() + row * row_elements);
  }
  if (engine.first_replica()) collect_gradients(engine, computed);
  // As transformers reports it: with what the routers add.
  if (rank == 0) computed.set_loss(outcome.loss() + outcome.auxiliary_loss + outcome.z_loss);
  rendezvous.exchange("parity done", {}, "");  // nobody leaves while others still compute
}

// Largest difference of one tensor, and its largest reference element. A difference that is no number counts as
// infinite.
struct Difference {
  double absolute = 0, largest = 0;
  void add(std::span<const float> computed, std::span<const float> wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double d = std::abs(static_cast<double>(computed[i]) - static_cast<double>(wanted[i]));
      absolute = std::isfinite(d) ? std::max(absolute, d) : std::numeric_limits<double>::infinity();
      largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    }
  }
  double relative() const {
    if (absolute == 0) return 0;
    return largest > 0 ? absolute / largest : std::numeric_limits<double>::infinity();
  }
};

// A difference up to `rounding` is none: some gradients are zero by the mathematics (a router that chooses one expert
// and normalises), so that both sides hold nothing but rounding of sums of far larger numbers.
void add_to(ParityLine& line, const std::string& tensor, const Difference& difference, double rounding = 0) {
  const double relative = difference.absolute <= rounding ? 0 : difference.relative();
  const bool worse = line.tensors == 0 || relative > line.relative;
  if (worse) line.worst = tensor;
  ++line.tensors;
  line.absolute = std::max(line.absolute, difference.absolute);
  line.relative = std::max(line.relative, relative);
}

// The distance of 1 from the next number.
double step_of(DType type) { return type == DType::bf16 ? 0x1p-7 : std::numeric_limits<float>::epsilon(); }

ParityLine compare_gradients(const Safetensors& file, const ParameterTable& table, const Computed& computed,
                             DType compute, double tolerance) {
  // A stored tensor may hold many parameters (all experts of a layer): its largest element is what counts.
  std::map<std::string, Difference> differences;
  for (const Parameter& parameter : table.parameters()) {
    const std::string name = "grad." + parameter.name;
    StoredParameter stored;
    try {
      stored = find_stored(file, name, parameter.shape);
    } catch (const Error&) {
      if (file.contains(name)) throw;
      continue;  // not recorded
    }
    std::vector<float> wanted(static_cast<std::size_t>(stored.elements));
    file.read_f32(stored.tensor, wanted, stored.begin);
    differences[stored.tensor].add(computed.gradient(parameter), wanted);
  }
  double largest = 0;
  for (const auto& [name, difference] : differences) largest = std::max(largest, difference.largest);
  const double rounding = largest * step_of(compute);
  ParityLine line{"gradients", "", 0, 0, 0, tolerance, true};
  for (const std::string& name : file.names()) {
    if (!name.starts_with("grad.")) continue;
    const auto found = differences.find(name);
    if (found == differences.end()) {
      fail(ErrorKind::data, "{} holds {}, but the model of the folder has no such parameter", file.path(), name);
    }
    add_to(line, name, found->second, rounding);
  }
  line.within = line.relative <= tolerance;
  return line;
}

std::vector<FoundPlugin> find_plugins(const ParityOptions& options) {
  const PluginCatalog catalog(plugin_search_path());
  std::vector<FoundPlugin> plugins;
  std::vector<std::string> names = {options.backend, "fsdp"};
  if (options.expert > 1) names.push_back("ep");
  for (const std::string& name : names) {
    const FoundPlugin* plugin = catalog.find_by_name(name);
    const auto refused = std::ranges::find(catalog.refused(), name, &RefusedPlugin::name);
    if (!plugin && refused != catalog.refused().end()) fail(ErrorKind::plugin, "{}", refused->reason);
    if (!plugin) fail(ErrorKind::plugin, "plugin {} is not on the search path; `ananke plugins` says what is", name);
    plugins.push_back(*plugin);
  }
  return plugins;
}

}  // namespace

std::vector<ParityLine> run_parity(const ParityOptions& options) {
  constexpr int most_ranks = 256;  // each with a device of its own
  if (options.ranks < 1 || options.ranks > most_ranks) {
    fail(ErrorKind::usage, "--ranks {} is no number of ranks to run on one machine; give 1 to {}", options.ranks,
         most_ranks);
  }
  if (options.replicate < 1 || options.ranks % options.replicate != 0) {
    fail(ErrorKind::config, "{} ranks cannot be {} replicas of equal size; replicate must divide ranks", options.ranks,
         options.replicate);
  }
  const int shard = options.ranks / options.replicate;
  if (options.expert < 1 || shard % options.expert != 0) {
    fail(ErrorKind::config, "a shard axis of {} ranks cannot be cut by an expert axis of {}; expert must divide {}",
         shard, options.expert, shard);
  }
  Job job;
  *job.mutable_model() = read_huggingface_config(options.folder);
  if (options.compute == DType::bf16) job.mutable_training()->set_compute(Training::BF16);
  const Safetensors file = Safetensors::open(options.case_file);
  const Case parity = read_case(file, job.model());
  const std::vector<FoundPlugin> plugins = find_plugins(options);
  const ParameterTable table(job.model());

  const Computed computed(parity, table);
  const auto run = options.processes ? run_rank_processes : run_rank_threads;
  run(options.ranks, std::chrono::seconds(60),
      [&](int rank, Rendezvous& rendezvous) { run_rank(options, job, parity, rank, rendezvous, plugins, computed); });

  std::vector<ParityLine> lines;
  if (file.contains("logits")) {
    const std::vector<std::int64_t> shape = {parity.rows, parity.length, parity.vocabulary};
    if (file.info("logits").shape != shape) {
      fail(ErrorKind::data, "{}: logits are {}, expected {}", file.path(), to_string(file.info("logits").shape),
           to_string(shape));
    }
    Difference difference;
    difference.add(computed.logits(), file.read_f32("logits"));
    ParityLine& line = lines.emplace_back(ParityLine{"logits", "", 0, 0, 0, options.logits_tolerance, true});
    add_to(line, "logits", difference);
    line.within = line.absolute <= line.tolerance;
  }
  if (file.contains("loss")) {
    const double wanted = file.read_f32("loss").at(0);
    const double absolute = std::abs(computed.loss() - wanted);
    lines.push_back({"loss", "loss", 1, absolute, wanted != 0 ? absolute / std::abs(wanted) : absolute,
                     options.loss_tolerance, absolute <= options.loss_tolerance});
  }
  if (ParityLine line = compare_gradients(file, table, computed, options.compute, options.gradient_tolerance);
      line.tensors > 0) {
    lines.push_back(line);
  }
  if (lines.empty()) fail(ErrorKind::data, "{} holds no logits, loss or grad.* to compare with", file.path());
  return lines;
}

}  // namespace ananke
