#include "tests/equivalence/rank_runs.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/wire_format_lite.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "ananke/plugin.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/data/sequential_batches.h"
#include "runtime/engine/initial_weights.h"
#include "runtime/engine/memory_report.h"
#include "runtime/engine/stored_values.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/catalog.h"
#include "runtime/plugin/note.h"
#include "runtime/plugin/registry.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

const char* small_job_text = R"(
  model { vocab_size: 61 hidden_size: 24 num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 head_dim: 8
          intermediate_size: 20 num_experts: 6 num_experts_per_tok: 2 moe_intermediate_size: 12 decoder_sparse_step: 2
          max_position_embeddings: 32 initializer_range: 0.05 }
  training { steps: 10 sequence_length: 32 rows_per_step: 8 seed: 3 clip_norm: 1 }
  data { generated { documents: 200 shortest: 2 longest: 70 branches: 3 } }
  learning_rate { warmup_steps: 10 }
  optimizer { use: "adamw" }
  evaluation { every_steps: 5 held_out { name: "all" generated_documents: 20 } }
)";

// Remembers what it is told; stops the run when told to.
class Recorder : public Observer, public RunControl {
 public:
  explicit Recorder(const RunRequest& request) : stop_at_(request.stop_at_step), stop_in_(request.stop_in) {}
  void on_step(const StepRecord& record) override { result.steps.push_back(record); }
  void on_evaluation(const EvaluationRecord& record) override { result.evaluations.push_back(record); }
  void on_event(const RunEvent& event) override { result.events.push_back(event.text()); }
  bool stop_requested() const override { return stop_at_ && step_ >= stop_at_; }
  void phase(std::string_view what, std::uint64_t step) override {
    if (what == stop_in_) step_ = step;
  }
  void console(const std::string& line) override { result.console.push_back(line); }
  RunResult result;

 private:
  std::uint64_t stop_at_, step_ = 0;
  std::string stop_in_;
};

const char* backend_of(const RunRequest& request) {
  if (request.rounding) return "rounding_backend";
  if (request.sharing) return "sharing_backend";
  return test_backend(request.mesh.ranks());
}

std::vector<FoundPlugin> plugins_of_build(const Job& job, const RunRequest& request) {
  const std::filesystem::path build = ANANKE_BINARY_DIR;
  const PluginCatalog catalog(
      {build / "lib" / "ananke", build / "tests" / "rounding_plugins", build / "tests" / "sharing_plugins"});
  std::vector<FoundPlugin> found;
  std::vector<const char*> names = {backend_of(request), "fsdp", "adamw", "muon"};
  for (const PluginUse& use : job.plugins()) {
    for (const char* other : {"activation_offload", "ep", "packing"}) {
      if (use.use() == other) names.push_back(other);
    }
  }
  for (const char* name : names) {
    const FoundPlugin* plugin = catalog.find_by_name(name);
    if (!plugin) fail(ErrorKind::plugin, "no plugin {} in {}", name, ANANKE_BINARY_DIR);
    found.push_back(*plugin);
  }
  return found;
}

void prepare(Job& job, const RunRequest& request) {
  const int ranks = request.mesh.ranks();
  job.mutable_mesh()->set_replicate(static_cast<std::uint32_t>(request.mesh.replicate));
  job.mutable_mesh()->set_shard(static_cast<std::uint32_t>(request.mesh.shard));
  job.mutable_mesh()->set_expert(static_cast<std::uint32_t>(request.mesh.expert));
  if (request.expert_chunks > 0) {
    PluginUse* ep = job.add_plugins();
    ep->set_use("ep");
    google::protobuf::io::StringOutputStream bytes(ep->mutable_config()->mutable_value());
    google::protobuf::io::CodedOutputStream wire(&bytes);
    google::protobuf::internal::WireFormatLite::WriteUInt32(1, static_cast<std::uint32_t>(request.expert_chunks),
                                                            &wire);  // ananke.plugin.Ep.chunks
    if (request.expert_bf16) {
      google::protobuf::internal::WireFormatLite::WriteEnum(2, 1, &wire);  // ananke.plugin.Ep.wire: BF16
    }
  }
  if (request.sharing) {
    PluginUse* sharing = job.add_plugins();
    sharing->set_use("sharing_backend");
    google::protobuf::io::StringOutputStream bytes(sharing->mutable_config()->mutable_value());
    google::protobuf::io::CodedOutputStream wire(&bytes);
    google::protobuf::internal::WireFormatLite::WriteString(1, "backend_host", &wire);  // SharingBackend.over
    if (request.slow_rank >= 0) {
      google::protobuf::internal::WireFormatLite::WriteUInt32(3, static_cast<std::uint32_t>(request.slow_rank), &wire);
    }
  }
  if (request.uneven) {
    job.mutable_training()->set_rows_per_microbatch(1);  // the pass is told otherwise
    return;
  }
  const std::uint32_t per_pass = static_cast<std::uint32_t>(ranks * request.microbatches);
  ASSERT_EQ(job.training().rows_per_step() % per_pass, 0u);
  job.mutable_training()->set_rows_per_microbatch(job.training().rows_per_step() / per_pass);
}

// Adds this rank's pieces to whole parameters; `pick` chooses weight or gradient.
template <class Pick>
void collect(Engine& engine, std::mutex& mutex, std::map<std::string, std::vector<float>>& whole, Pick pick) {
  for (const OwnedFragment& fragment : engine.parameters().fragments()) {
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    std::vector<float> piece(static_cast<std::size_t>(fragment.where.count));
    read_f32(engine.device(), pick(fragment), piece.data());
    std::lock_guard lock(mutex);
    std::vector<float>& values = whole[parameter.name];
    values.resize(static_cast<std::size_t>(parameter.shape.elements()));
    std::copy(piece.begin(), piece.end(), values.begin() + fragment.where.begin);
  }
}

// Weights and router biases.
void collect_weights(Engine& engine, std::mutex& mutex, std::map<std::string, std::vector<float>>& whole) {
  collect(engine, mutex, whole, [](const OwnedFragment& f) { return f.weight; });
  for (const Parameter& bias : engine.table().buffers()) {
    std::vector<float> values(static_cast<std::size_t>(bias.shape.elements()));
    engine.device().read(engine.routers().bias(bias.layer), values.data());
    std::lock_guard lock(mutex);
    const auto place = whole.try_emplace(bias.name, values).first;
    EXPECT_EQ(place->second, values) << bias.name << " on rank " << engine.context().rank;
  }
}

// Whole optimizer states, as collect() does for parameters. Replicas must hold the same bits.
void collect_states(Trainer& trainer, std::mutex& mutex, std::map<std::string, std::vector<float>>& whole) {
  Engine& engine = trainer.engine();
  for (const OptimizerStep::State& state : trainer.optimizer().states()) {
    const Fragment& where = state.fragment->where;
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(where.parameter)];
    std::vector<float> piece(static_cast<std::size_t>(where.count));
    read_f32(engine.device(), state.values, piece.data());
    std::lock_guard lock(mutex);
    std::vector<float>& values = whole[parameter.name + " " + state.name];
    values.resize(static_cast<std::size_t>(parameter.shape.elements()));
    std::copy(piece.begin(), piece.end(), values.begin() + where.begin);
  }
}

// Every replica's pieces of weights and states, against what was collected of all.
void expect_equal_replicas(Trainer& trainer, const RunResult& result) {
  Engine& engine = trainer.engine();
  const auto expect = [&](const Fragment& where, const TensorView& values, const std::vector<float>& whole) {
    std::vector<float> piece(static_cast<std::size_t>(where.count));
    read_f32(engine.device(), values, piece.data());
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + where.begin))
        << "rank " << engine.context().rank << ", parameter " << where.parameter;
  };
  for (const OwnedFragment& fragment : engine.parameters().fragments()) {
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    expect(fragment.where, fragment.weight, result.weights.at(parameter.name));
  }
  for (const OptimizerStep::State& state : trainer.optimizer().states()) {
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(state.fragment->where.parameter)];
    expect(state.fragment->where, state.values, result.states.at(parameter.name + " " + state.name));
  }
}

// What is in use after the start is what was announced before it, purpose by purpose.
void expect_planned(Trainer& trainer) {
  std::map<std::string, std::uint64_t> planned, used;
  for (const PlanLine& line : trainer.plan()) {
    if (line.lifetime == Lifetime::run) planned[line.purpose] += line.bytes;
  }
  Device& device = trainer.engine().device();
  std::set<Arena*> arenas = {&device.memory(), &device.host_memory()};
  for (Arena* arena : arenas) {
    for (const Arena::Line& line : arena->ledger()) used[line.purpose] += line.bytes;
  }
  std::erase_if(planned, [](const auto& line) { return line.second == 0; });
  // Of what the backend takes for itself some comes from the arenas, too.
  for (const PlanLine& line : trainer.other_plan()) used.erase(line.purpose);
  EXPECT_EQ(used, planned);
}

template <class Work>
void run_registries(const Job& job, const RunRequest& request, Work work) {
  const std::vector<FoundPlugin> plugins = plugins_of_build(job, request);
  // Stated, since ThreadSanitizer cannot see the lock under which protobuf makes a string's default at its first use.
  Site site;
  site.mutable_deadlines()->set_exchange("60s");
  site.mutable_deadlines()->set_step("60s");
  run_rank_threads(request.mesh.ranks(), std::chrono::seconds(60), [&](int rank, Rendezvous& rendezvous) {
    PluginRegistry registry;
    for (const FoundPlugin& plugin : plugins) registry.load(plugin.note->name(), plugin.file);
    const RoleContext context{job, site, request.mesh, rank, request.mesh.ranks()};
    work(context, registry, rendezvous);
  });
}

template <class Work>
void run_ranks(const Job& job, const RunRequest& request, Work work) {
  std::mutex making;  // plugins' configs are parsed one after the other, for the same reason
  run_registries(job, request, [&](const RoleContext& context, PluginRegistry& registry, Rendezvous& rendezvous) {
    std::unique_lock lock(making);
    EngineRoles roles = make_roles(job, registry, context);
    lock.unlock();
    work(context, std::move(roles), rendezvous);
  });
}

// Starts, and trains where told to; then collects what all ranks hold.
RunResult run_trainers(Job job, const RunRequest& request, bool trains) {
  prepare(job, request);
  RunResult result;
  std::mutex mutex;
  run_ranks(job, request, [&](const RoleContext& context, EngineRoles roles, Rendezvous& rendezvous) {
    Recorder recorder(request);
    Trainer trainer(std::move(roles), context, rendezvous, recorder, recorder);
    trainer.start(request.resume);
    expect_planned(trainer);
    if (trains) trainer.train();
    const MemoryReport memory = measured_report(trainer);
    {
      std::lock_guard lock(mutex);
      result.memory.resize(static_cast<std::size_t>(context.mesh.ranks()));
      result.memory[static_cast<std::size_t>(context.rank)] = memory;
    }
    collect_weights(trainer.engine(), mutex, result.weights);
    collect_states(trainer, mutex, result.states);
    rendezvous.exchange("all collected", {}, "");
    expect_equal_replicas(trainer, result);
    if (context.rank == 0) {
      result.steps = recorder.result.steps;
      result.evaluations = recorder.result.evaluations;
      result.events = recorder.result.events;
      result.console = recorder.result.console;
    }
    rendezvous.exchange("test done", {}, "");
  });
  return result;
}

// Rank r of R has rows [n r^2 / R^2, n (r + 1)^2 / R^2) of n.
Rows uneven_part(const Rows& all, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t begin = all.rows * rank * rank / (ranks * ranks);
  const std::int64_t end = all.rows * (rank + 1) * (rank + 1) / (ranks * ranks);
  Rows mine;
  mine.rows = end - begin;
  mine.row_length = all.row_length;
  const auto take = [&](auto& to, const auto& from, std::int64_t width) {
    to.assign(from.begin() + begin * width, from.begin() + end * width);
  };
  take(mine.tokens, all.tokens, all.row_length);
  take(mine.targets, all.targets, all.row_length);
  take(mine.positions, all.positions, all.row_length);
  take(mine.segments, all.segments, 1);
  mine.valid_targets = std::count_if(mine.targets.begin(), mine.targets.end(), [](auto t) { return t >= 0; });
  return mine;
}

// Of one microbatch on any rank.
std::int64_t most_rows(const Job& job, const RunRequest& request) {
  if (request.rows != nullptr) return request.rows->rows;
  const std::int64_t all = job.training().rows_per_step() / request.microbatches, ranks = request.mesh.ranks();
  return request.uneven ? all - all * (ranks - 1) * (ranks - 1) / (ranks * ranks) : all / ranks;
}

// The first step's rows of a rank, by microbatch.
std::vector<Rows> first_rows(const Job& job, const RunRequest& request, const RoleContext& context) {
  if (request.rows != nullptr) return {*request.rows};
  const std::int64_t step = job.training().rows_per_step(), each = step / request.microbatches;
  const int ranks = context.mesh.ranks();
  const auto batches = request.uneven ? training_batches(job, 0, 1) : training_batches(job, context.rank, ranks);
  Rows rows;
  if (request.skip_rows > 0) batches->next(request.skip_rows, rows);
  std::vector<Rows> all;
  for (int m = 0; m < request.microbatches; ++m) {
    batches->next(each, all.emplace_back());
    if (request.uneven) all.back() = uneven_part(all.back(), (context.rank + m) % ranks, ranks);
  }
  return all;
}

}  // namespace

Job small_job(const std::filesystem::path& run_dir, const std::string& changes) {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(small_job_text, &job));
  google::protobuf::TextFormat::Parser merger;
  EXPECT_TRUE(merger.MergeFromString(changes, &job)) << changes;
  job.set_run_dir(run_dir.string());
  // The plugin's message class lives in its library alone, so its one field is written as wire bytes.
  PluginUse* adamw = job.add_plugins();
  adamw->set_use("adamw");
  google::protobuf::io::StringOutputStream bytes(adamw->mutable_config()->mutable_value());
  google::protobuf::io::CodedOutputStream wire(&bytes);
  google::protobuf::internal::WireFormatLite::WriteDouble(1, 1e-3, &wire);  // ananke.plugin.AdamW.lr
  return job;
}

void add_plugin(Job& job, const std::string& name, const std::string& config) {
  // A plugin's message class lives in its library alone.
  const PluginNote note = read_note(std::filesystem::path(ANANKE_BINARY_DIR) / "lib" / "ananke" / (name + ".so"));
  google::protobuf::DescriptorPool pool;
  for (const auto& file : note.files().file()) EXPECT_NE(pool.BuildFile(file), nullptr) << file.name();
  google::protobuf::DynamicMessageFactory factory(&pool);
  const auto* descriptor = pool.FindMessageTypeByName(note.config_message());
  const std::unique_ptr<google::protobuf::Message> message(factory.GetPrototype(descriptor)->New());
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(config, message.get())) << config;
  PluginUse* use = job.add_plugins();
  use->set_use(name);
  use->mutable_config()->set_value(message->SerializeAsString());
}

RunResult train(Job job, const RunRequest& request) { return run_trainers(std::move(job), request, true); }

RunResult start_only(Job job, const RunRequest& request) { return run_trainers(std::move(job), request, false); }

GradientResult first_gradients(Job job, const RunRequest& request) {
  prepare(job, request);
  GradientResult result;
  std::mutex mutex;
  run_ranks(job, request, [&](const RoleContext& context, EngineRoles roles, Rendezvous& rendezvous) {
    Engine engine(std::move(roles), context, rendezvous);
    PassLimits limits = pass_limits(job);
    const std::vector<Rows> rows = first_rows(job, request, context);
    limits.microbatches = request.microbatches;
    if (job.training().microbatches_per_gather() == 0) limits.microbatches_per_gather = request.microbatches;
    limits.tokens = most_rows(job, request) * job.training().sequence_length();
    engine.start(limits);
    initialise(engine.device(), engine.table(), engine.parameters().fragments(), job.training().seed(),
               job.model().initializer_range());
    engine.parameters().updated();
    // A loader for each microbatch, since one would fill the first microbatches up.
    std::vector<std::unique_ptr<BatchLoader>> loaders;
    std::vector<DeviceBatch> batches;
    std::int64_t valid_targets = 0;
    for (const Rows& microbatch : rows) {
      loaders.push_back(
          std::make_unique<BatchLoader>(engine.device(), 1, most_rows(job, request), job.training().sequence_length()));
      batches.push_back(loaders.back()->load(engine.compute(), microbatch)[0]);
      valid_targets += microbatch.valid_targets;
    }
    StepScalars scalars(engine.backend(), engine.world());
    const Settling settling(engine);  // before what the streams still read is gone
    scalars.begin(valid_targets, false);
    engine.pass().run(training_schedule(engine.table(), limits.microbatches, limits.microbatches_per_gather), batches,
                      {scalars.loss(), scalars.loss_scale(), {}, false, scalars.router_losses()});
    scalars.agree(0);
    const StepScalars::Outcome outcome = scalars.read();
    if (engine.first_replica()) {
      collect(engine, mutex, result.gradients, [](const OwnedFragment& f) { return f.gradient; });
    }
    for (const OwnedFragment& fragment : engine.parameters().fragments()) {
      std::vector<float> piece(static_cast<std::size_t>(fragment.where.count));
      read_f32(engine.device(), fragment.gradient, piece.data());
      std::lock_guard lock(mutex);
      const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(fragment.where.parameter)];
      result.by_replica[fmt::format("{} from {}", parameter.name, fragment.where.begin)].push_back(std::move(piece));
    }
    rendezvous.exchange("test done", {}, "");
    if (context.rank == 0) {
      for (const PlanLine& line : engine.plan(limits)) result.planned[line.purpose] += line.bytes;
      result.loss = outcome.loss();
      result.auxiliary_loss = outcome.auxiliary_loss;
      result.z_loss = outcome.z_loss;
      result.valid_targets = outcome.valid_targets;
    }
  });
  return result;
}

void run_backends(int ranks, const std::function<void(int rank, Backend& backend, Communicator& world)>& work) {
  const Job job = small_job("unused");
  run_ranks(job, {{1, ranks}}, [&](const RoleContext& context, EngineRoles roles, Rendezvous& rendezvous) {
    std::vector<int> everyone;
    for (int rank = 0; rank < ranks; ++rank) everyone.push_back(rank);
    const std::unique_ptr<Communicator> world = roles.backend->make_communicator("world", everyone, rendezvous);
    work(context.rank, *roles.backend, *world);
    rendezvous.exchange("test done", {}, "");
  });
}

void run_roles(const Job& job, const MeshShape& mesh,
               const std::function<void(const RoleContext&, EngineRoles&, Rendezvous&)>& work) {
  run_ranks(job, {mesh}, [&](const RoleContext& context, EngineRoles roles, Rendezvous& rendezvous) {
    work(context, roles, rendezvous);
    rendezvous.exchange("test done", {}, "");
  });
}

void run_makers(const Job& job, const MeshShape& mesh,
                const std::function<void(const RoleContext&, const std::function<EngineRoles()>&, Rendezvous&)>& work) {
  run_registries(job, {mesh}, [&](const RoleContext& context, PluginRegistry& registry, Rendezvous& rendezvous) {
    work(
        context, [&] { return make_roles(context.job, registry, context); }, rendezvous);
    rendezvous.exchange("test done", {}, "");
  });
}

double relative_difference(const std::vector<float>& got, const std::vector<float>& wanted) {
  if (got.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
  }
  return difference == 0 ? 0 : difference / largest;
}

}  // namespace ananke
