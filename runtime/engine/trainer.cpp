#include "runtime/engine/trainer.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numbers>
#include <sstream>
#include <thread>

#include "ananke/job.pb.h"
#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/data/sequential_batches.h"
#include "runtime/engine/initial_weights.h"
#include "runtime/engine/learning_rate.h"
#include "runtime/engine/non_finite.h"
#include "runtime/engine/optimizer_rules.h"
#include "runtime/roles/compute_type.h"
#include "runtime/telemetry/tables.h"

namespace ananke {
namespace {

int microbatches_of(const Job& job, int ranks) {
  const Training& training = job.training();
  return static_cast<int>(training.rows_per_step() /
                          (static_cast<std::uint32_t>(ranks) * training.rows_per_microbatch()));
}

std::unique_ptr<Batches> training_batches(Engine& engine, const Job& job) {
  std::unique_ptr<Batches> given = engine.take_batches();
  if (given) return given;
  return training_batches(job, engine.context().rank, engine.context().mesh.ranks());
}

// Who updates whole matrices, in one line; nothing where no optimizer asks for them.
std::string describe(const MatrixWork& work) {
  if (work.assignments().empty()) return "";
  std::map<std::pair<int, int>, double> loads;
  double all = 0, largest = 0;
  std::size_t travelling = 0;
  for (const MatrixWork::Assignment& matrix : work.assignments()) {
    largest = std::max(largest, loads[{matrix.replica, matrix.rank}] += matrix.cost);
    all += matrix.cost;
    travelling += matrix.travels ? 1 : 0;
  }
  return fmt::format(
      "{} whole matrices to update: {} where they are, {} travel in {} rounds; {} ranks do it, the busiest {:.2f} of "
      "the "
      "mean",
      work.assignments().size(), work.assignments().size() - travelling, travelling, work.travelling().size(),
      loads.size(), all > 0 ? largest * static_cast<double>(loads.size()) / all : 1.0);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

MatrixWork make_matrix_work(const Engine& engine, const std::vector<std::string>& optimizer_names) {
  const RoleContext& context = engine.context();
  const MeshCoordinates at = coordinates(context.mesh, context.rank);
  // Of the first replica; others own the same.
  std::vector<std::vector<Fragment>> fragments;
  for (int rank = 0; rank < context.mesh.shard; ++rank) fragments.push_back(engine.placement().fragments(rank));
  const MatrixUpdates& options = context.job.matrix_updates();
  std::uint64_t resident_bytes = parse_bytes(options.resident_bucket());
  for (int unit = 0; unit < std::ssize(engine.table().units()); ++unit) {
    // The link has work while a round is transformed as long as the buffers hold what the next one needs: 12 bytes an
    // element, of which a round has 4, in three buffers.
    if (engine.place_of(unit) == Place::host) {
      resident_bytes = std::min(resident_bytes, parse_bytes(context.job.host_updates().bucket()));
    }
  }
  return {engine.table(),
          optimizer_names,
          engine.optimizers(),
          fragments,
          {.replicas = context.mesh.replicate,
           .replica = at.replicate,
           .rank = at.shard,
           .bucket_bytes = parse_bytes(options.bucket()),
           .resident_bytes = resident_bytes,
           .share_replicas = options.share_replicas()}};
}

PassLimits pass_limits(const Job& job) {
  const Training& training = job.training();
  PassLimits limits;
  limits.longest = training.sequence_length();
  limits.tokens = static_cast<std::int64_t>(training.rows_per_microbatch()) * training.sequence_length();
  limits.microbatches = microbatches_of(job, mesh_of(job.mesh()).ranks());
  limits.microbatches_per_gather = training.microbatches_per_gather() == 0
                                       ? limits.microbatches
                                       : static_cast<int>(training.microbatches_per_gather());
  limits.recompute = recompute_of(training, job.model().num_hidden_layers());
  limits.positions = job.model().max_position_embeddings();
  limits.forced_balance = training.force_balanced_routing();
  return limits;
}

Trainer::Trainer(EngineRoles roles, const RoleContext& context, Rendezvous& rendezvous, RunControl& control,
                 Observer& observer)
    : job_(context.job),
      rendezvous_(rendezvous),
      control_(control),
      observer_(observer),
      engine_(std::move(roles), context, rendezvous),
      limits_(pass_limits(job_)),
      optimizer_names_(optimizer_of_each(job_, engine_.table())),
      matrix_work_(make_matrix_work(engine_, optimizer_names_)),
      schedule_(training_schedule(engine_.table(), limits_.microbatches, limits_.microbatches_per_gather)),
      batches_(training_batches(engine_, job_)),
      rows_(*batches_, job_.training().rows_per_step()),
      held_out_(held_out_batches(job_, context.rank, context.mesh.ranks())),
      evaluates_(!held_out_.empty()),
      checkpoints_(job_.run_dir(), rendezvous, "checkpoint",
                   {control.owner_mark(), [&control] { control.confirm_owner(); }}),
      traffic_(engine_.table()),
      work_(engine_.table(), context.rank, context.mesh.ranks()),
      tracer_(context, engine_.backend()) {}

std::vector<PlanLine> Trainer::plan() const {
  const Training& training = job_.training();
  const std::vector<Fragment> owned = engine_.owned();
  std::vector<PlanLine> lines;
  const auto add = [&](std::vector<PlanLine> more) {
    for (PlanLine& line : more) lines.push_back(std::move(line));
  };
  add(engine_.plan(limits_));
  add(BatchLoader::plan(limits_.microbatches, training.rows_per_microbatch(), training.sequence_length()));
  add(StepScalars::plan(RouterBalancing::summary_size(engine_.table()),
                        StepWork::slots(engine_.context().mesh.ranks())));
  add(OptimizerStep::plan(engine_.table(), optimizer_names_, engine_.optimizers(), matrix_work_,
                          engine_.backend().operators(), owned, stored_type(job_), host_state()));
  if (!job_.checkpoint().none()) add(StateCheckpoint::plan(engine_.table(), owned, host_state().places));
  if (evaluates_) add(StepScalars::plan());
  add(RoutingTape::plan(job_));
  if (ReplicaCheck::wanted(job_)) add(ReplicaCheck::plan(engine_.table(), engine_.context().mesh, owned));
  add(initial_weights_plan(owned));
  return lines;
}

HostState Trainer::host_state() const {
  HostState host;
  for (int unit = 0; unit < static_cast<int>(engine_.table().units().size()); ++unit) {
    host.places.push_back(engine_.place_of(unit));
  }
  host.bucket_bytes = parse_bytes(job_.host_updates().bucket());
  return host;
}

std::vector<PlanLine> Trainer::other_plan() const {
  std::vector<CollectiveUse> uses = engine_.exchanges(limits_);
  const auto add = [&](std::vector<CollectiveUse> more) {
    for (CollectiveUse& use : more) uses.push_back(std::move(use));
  };
  add(StepScalars::exchanges(StepWork::slots(engine_.context().mesh.ranks())));
  add(MatrixStep::exchanges(matrix_work_));
  if (ReplicaCheck::wanted(job_)) add(ReplicaCheck::exchanges(engine_.table(), engine_.owned()));
  std::vector<PlanLine> lines = engine_.backend().plan(largest_of(std::move(uses), engine_.context().mesh.expert));
  const auto tokens = static_cast<std::uint64_t>(limits_.tokens) * static_cast<std::uint64_t>(limits_.microbatches);
  lines.push_back({"rows of a step (host)", Place::host, 3 * tokens * sizeof(std::int32_t), Lifetime::use});
  return lines;
}

void Trainer::start(bool resume_run, const ChangesSince& changes) {
  const Training& training = job_.training();
  control_.phase("start", 0);
  engine_.start(limits_);
  engine_.pass().watch([this](const ItemPlace& place) { control_.item(place); });
  loader_ = std::make_unique<BatchLoader>(engine_.device(), limits_.microbatches, training.rows_per_microbatch(),
                                          training.sequence_length());
  scalars_ = std::make_unique<StepScalars>(engine_.backend(), engine_.world(), engine_.routers().summary_size(),
                                           StepWork::slots(engine_.context().mesh.ranks()));
  compare_matrix_work();
  if (const std::string work = describe(matrix_work_); !work.empty()) log_info("{}", work);
  HostState host = host_state();
  host.square_sums = engine_.parameters().square_sums();
  optimizer_ = std::make_unique<OptimizerStep>(engine_.table(), optimizer_names_, engine_.optimizers(), matrix_work_,
                                               engine_.backend(), engine_.shard(), engine_.replicate(),
                                               engine_.parameters().fragments(), host);
  if (!job_.checkpoint().none()) state_ = std::make_unique<StateCheckpoint>(engine_, *optimizer_, checkpoints_);
  if (evaluates_) {
    evaluator_ = std::make_unique<Evaluator>(engine_, *loader_, std::move(held_out_), training.rows_per_microbatch());
  }
  routing_ = std::make_unique<RoutingTape>(job_, engine_);
  if (ReplicaCheck::wanted(job_)) {
    replicas_ = std::make_unique<ReplicaCheck>(engine_.table(), engine_.backend(), engine_.replicate(), engine_.world(),
                                               engine_.parameters().fragments(), engine_.routers().biases());
  }
  if (resume_run) resume(changes);
  if (!saved_step_) make_weights();
  tracer_.start(saved_step_);
  if (const std::string passed = tracer_.passed(); engine_.context().rank == 0 && !passed.empty()) {
    control_.console(passed);
  }
  if (training.force_balanced_routing()) {
    tell_event(RunEvent::STARTED, "training.force_balanced_routing: tokens are dealt to experts in turn; a sizing run");
  }
  if (training.deterministic()) {
    tell_event(RunEvent::STARTED, "training.deterministic: " + engine_.backend().determinism());
  }
  compare_memory();
  Arena& memory = engine_.device().memory();
  log_info("{}", ledger_text("device memory", memory.ledger(), memory.peak()));
}

void Trainer::compare_memory() {
  const Device::MemoryUse own = engine_.device().memory_use();
  const std::string mine = fmt::format("{} {} {}", own.active, own.reserved, own.retries);
  for (const std::string& text : rendezvous_.exchange_after_work("memory in use", {}, mine)) {
    Device::MemoryUse use;
    std::istringstream(text) >> use.active >> use.reserved >> use.retries;
    memory_.active = std::max(memory_.active, use.active);
    memory_.reserved = std::max(memory_.reserved, use.reserved);
    memory_.retries = std::max(memory_.retries, use.retries);
  }
}

// Rank 0's grows where a step allocates, which none should.
void Trainer::report_memory(StepRecord& record) {
  const Device::MemoryUse now = engine_.device().memory_use();
  record.set_memory_bytes(std::max(memory_.active, now.active));
  record.set_memory_reserved_bytes(std::max(memory_.reserved, now.reserved));
  record.set_memory_retries(std::max(memory_.retries, now.retries));
}

// Ranks that disagree would wait for each other's matrices.
void Trainer::compare_matrix_work() {
  const std::vector<std::string> all = rendezvous_.exchange("matrix work", {}, matrix_work_.hash());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == matrix_work_.hash()) continue;
    fail(ErrorKind::config,
         "rank {} shares out the optimizers' matrices by plan {}, rank {} by plan {}: they run different jobs or "
         "different builds; make the job file and the installation the same on all nodes",
         engine_.context().rank, matrix_work_.hash(), rank, all[rank]);
  }
}

void Trainer::make_weights() {
  const std::span<const OwnedFragment> fragments = engine_.parameters().fragments();
  const std::string& folder = job_.initial_weights();
  if (folder.empty()) {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // of all workers here
    initialise(engine_.device(), engine_.table(), fragments, job_.training().seed(), job_.model().initializer_range(),
               std::max(1, cores / std::max(1, engine_.context().node_ranks)));
  } else {
    control_.phase("reading initial weights", 0);
    load_weights(engine_.device(), engine_.table(), fragments,
                 HuggingfaceWeights(folder, job_.model(), engine_.table()), engine_.routers().biases());
  }
  engine_.parameters().updated();
  tell_event(RunEvent::STARTED, folder.empty() ? "weights made from the seed" : "weights from " + folder);
}

void Trainer::resume(const ChangesSince& changes) {
  control_.phase("resume", 0);
  if (!state_) {
    fail(ErrorKind::config,
         "the run cannot be resumed: checkpoint.none is set, so no checkpoint is written or read; "
         "remove it from the job, or start anew without --resume");
  }
  std::vector<std::string> changed;
  std::optional<LoadedState> loaded = state_->load([&](const LoadedState& state) {
    if (changes) changed = changes(state);
  });
  if (!loaded) {
    control_.console(fmt::format("no checkpoint under {} yet: starting at step 1", job_.run_dir()));
    return;
  }
  progress_ = loaded->progress;
  rows_.restore(progress_.batches_position);
  saved_step_ = progress_.step;
  tell_event(RunEvent::RESUMED, fmt::format("resumed from {}", loaded->folder.string()));
  if (stored_type(job_) != DType::f32 && stored_type(*loaded->job) == DType::f32) {
    tell_event(RunEvent::RESUMED,
               fmt::format("training.weights is {}: weights and optimizer state of the checkpoint, which are f32, are "
                           "rounded to it",
                           Training::Compute_Name(job_.training().weights())));
  }
  for (const std::string& reason : loaded->passed_over) tell_event(RunEvent::RESUMED, "passed over: " + reason);
  for (const std::string& change : changed) tell_event(RunEvent::RESUMED, "changed: " + change);
}

TrainingEnd Trainer::train() {
  const std::uint64_t steps = job_.training().steps(), save_every = job_.checkpoint().every_steps(),
                      evaluate_every = job_.evaluation().every_steps();
  bool going_on = true;
  while (going_on && progress_.step < steps) {
    tracer_.begin(progress_.step + 1);
    going_on = train_step();
    const std::uint64_t step = progress_.step;
    if (evaluate_every && step % evaluate_every == 0 && going_on) going_on = evaluate();
    if (save_every && step % save_every == 0) save();
  }
  if (going_on && evaluated_step_ != progress_.step) going_on = evaluate();
  if (saved_step_ != progress_.step) save();
  tracer_.end();
  tell_event(going_on ? RunEvent::FINISHED : RunEvent::STOP_REQUESTED,
             going_on ? "all steps done"
             : state_ ? "stopped on request; continue with --resume"
                      : "stopped on request");
  return going_on ? TrainingEnd::finished : TrainingEnd::stopped;
}

bool Trainer::train_step() {
  const auto begin = std::chrono::steady_clock::now();
  const Training& training = job_.training();
  const std::uint64_t step = progress_.step + 1;
  control_.phase("step", step);
  reads_ = engine_.device().reads();
  const TraceSpan span(TraceKind::step, [&] { return TraceText{fmt::format("step {}", step)}; });
  const Rows& rows = rows_.take();
  scalars_->clear(rows.valid_targets, control_.stop_requested(), work_.begin(rows, engine_.device().busy_seconds()));
  const std::vector<DeviceBatch>& batches = loader_->load(engine_.compute(), rows);
  routing_->before_step(step, batches);
  engine_.pass().run(schedule_, batches,
                     {.loss = scalars_->loss(),
                      .scale = scalars_->loss_scale(),
                      .logits = {},
                      .replay_routing = routing_->replays(),
                      .router_losses = scalars_->router_losses(),
                      .gathers_begun = [this] { scalars_->sum_targets(); },
                      .gradients_begin = [this] { scalars_->make_loss_scale(); }});
  const double lr_factor = learning_rate_factor(job_.learning_rate(), training.steps(), step);
  update(lr_factor);
  if (step < training.steps()) rows_.prepare();  // the device is still at work
  const StepScalars::Outcome outcome = scalars_->read();
  work_.end(engine_.device().busy_seconds());
  routing_->after_step(step, batches);
  if (replicas_) replicas_->run(step);

  check_finite(outcome);
  progress_.step = step;
  progress_.total_valid_tokens += static_cast<std::uint64_t>(outcome.valid_targets);
  progress_.optimizer_steps += outcome.finite ? 1 : 0;
  report_step(outcome, seconds_since(begin), lr_factor);
  return !outcome.stop;
}

void Trainer::update(double lr_factor) {
  {
    const TraceSpan span(TraceKind::phase, "gradient norm");
    if (engine_.first_replica()) optimizer_->add_square_sum(*scalars_);
    scalars_->agree(job_.training().clip_norm());
  }
  const TraceSpan span(TraceKind::phase, "optimizer");
  optimizer_->update(*scalars_, progress_.optimizer_steps + 1, lr_factor);
  engine_.routers().update(scalars_->finite(), scalars_->more());
  engine_.parameters().updated();
}

// The same on every rank: the first rank's text that is not empty, with its number.
std::string Trainer::of_some_rank(const std::string& what, const std::string& mine) {
  const auto all = rendezvous_.exchange(fmt::format("{} of step {}", what, progress_.step + 1), {}, mine);
  const auto found = std::find_if(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
  return found == all.end() ? "" : fmt::format(" (rank {}: {})", found - all.begin(), *found);
}

void Trainer::check_finite(const StepScalars::Outcome& outcome) {
  if (outcome.finite) return;
  const auto fragments = engine_.parameters().fragments();
  std::string where =
      of_some_rank("weights", find_non_finite_weight(engine_.device(), engine_.table(), fragments, optimizer_names_));
  const bool curable = where.empty();
  if (curable)
    where = of_some_rank("gradients", find_non_finite_gradient(engine_.device(), engine_.table(), fragments));
  const std::string what = fmt::format("step {}: loss {}, gradient norm {}: not finite{}", progress_.step + 1,
                                       outcome.loss(), outcome.gradient_norm, where);
  if (job_.training().on_non_finite() == Training::SKIP && curable) {
    log_warning("{}; the step is skipped, no weight changed", what);
    return;
  }
  fail(ErrorKind::numeric,
       "{}; the update was not applied and the job stops. The last checkpoint is {}. Look at the learning rate, the "
       "clip norm and the data of this step{}",
       what, saved_step_ ? fmt::format("of step {}", *saved_step_) : std::string("none"),
       curable ? ", or set training.on_non_finite: SKIP" : "; no later step can be finite with these weights");
}

void Trainer::report_step(const StepScalars::Outcome& outcome, double seconds, double lr_factor) {
  StepRecord record;
  record.set_step(progress_.step);
  record.set_loss(outcome.loss());
  record.set_gradient_norm(outcome.gradient_norm);
  record.set_learning_rate_factor(lr_factor);
  record.set_learning_rate(engine_.optimizers().at(job_.optimizer(0).use())->learning_rate() * lr_factor);
  record.set_valid_tokens(static_cast<std::uint64_t>(outcome.valid_targets));
  record.set_total_valid_tokens(progress_.total_valid_tokens);
  record.set_seconds(seconds);
  record.set_tokens_per_second(static_cast<double>(outcome.valid_targets) / seconds);
  record.set_skipped(!outcome.finite);
  report_memory(record);
  const Training& training = job_.training();
  record.set_padding_tokens(std::uint64_t{training.rows_per_step()} * training.sequence_length() -
                            record.valid_tokens());
  work_.report(outcome.shared, record);
  report_routing(outcome, record);
  record.set_device_reads(engine_.device().reads() - reads_);
  traffic_.report(traffic(), record);
  report_offload(record);
  tell(record, [](Observer& observer, const StepRecord& r) { observer.on_step(r); });
  tell_slow_rank(record);
}

void Trainer::tell_slow_rank(const StepRecord& record) {
  const auto slow = slow_rank_.see(record);
  if (!slow || engine_.context().rank != 0) return;
  const std::string& node = engine_.nodes().at(*slow);
  RunEvent event;
  event.set_kind(RunEvent::SLOW_RANK);
  event.set_step(progress_.step);
  event.set_rank(*slow);
  event.set_host(node);
  event.set_straggler(record.work().straggler());
  event.set_text(
      fmt::format("rank {}{} has taken {:.2f}x as long as the median rank for the same work, in {} steps "
                  "running; its node is slow{}",
                  *slow, node.empty() ? "" : " on " + node, event.straggler(), SlowRankWatch::again,
                  job_.mesh().expert() > 1 ? ", or its experts have more to do" : ""));
  tell(event, [](Observer& observer, const RunEvent& e) { observer.on_event(e); });
}

void Trainer::report_offload(StepRecord& record) {
  const ActivationTraffic now = engine_.activation_traffic();
  const ActivationTraffic before = std::exchange(moved_, now);
  if (now.bytes_out == 0) return;
  OffloadRecord& offload = *record.mutable_offload();
  offload.set_bytes_out(now.bytes_out - before.bytes_out);
  offload.set_bytes_in(now.bytes_in - before.bytes_in);
  if (!now.copy_seconds || !now.stall_seconds) return;
  const double copies = *now.copy_seconds - before.copy_seconds.value_or(0);
  const double stalls = *now.stall_seconds - before.stall_seconds.value_or(0);
  offload.set_copy_seconds(copies);
  offload.set_stall_seconds(stalls);
  if (copies > 0) offload.set_overlapped(std::clamp(1 - stalls / copies, 0.0, 1.0));
}

Traffic Trainer::traffic() const {
  Traffic all = engine_.traffic();
  for (TrafficLine& line : optimizer_->traffic()) all.push_back(std::move(line));
  return all;
}

void Trainer::report_routing(const StepScalars::Outcome& outcome, StepRecord& record) const {
  const RouterBalancing& routers = engine_.routers();
  if (routers.has_auxiliary_loss()) record.set_auxiliary_loss(outcome.auxiliary_loss);
  if (routers.has_z_loss()) record.set_router_z_loss(outcome.z_loss);
  if (job_.training().force_balanced_routing()) record.set_forced_balance(true);
  if (routers.summary_size() == 0) return;
  RoutingRecord& routing = *record.mutable_routing();
  for (const RouterBalancing::LayerLoad& load : routers.describe(outcome.more)) {
    routing.add_layer(static_cast<std::uint32_t>(load.layer));
    routing.add_load_min(load.smallest);
    routing.add_load_max(load.largest);
    routing.add_load_mean(load.mean);
    routing.add_imbalance(load.mean > 0 ? load.largest / load.mean : 0);
    routing.add_entropy(load.entropy);
    routing.add_dropped(load.dropped);
    if (!routers.biased()) continue;
    routing.add_bias_min(load.bias_lowest);
    routing.add_bias_max(load.bias_highest);
  }
}

bool Trainer::evaluate() {
  if (!evaluator_) return true;
  control_.phase("evaluation", progress_.step);
  const TraceSpan span(TraceKind::phase, "evaluation");
  const auto outcomes = evaluator_->run([this] { return control_.stop_requested(); });
  StepRecord apart;  // what an evaluation moves is of no step
  traffic_.report(traffic(), apart);
  if (!outcomes) return false;
  evaluated_step_ = progress_.step;
  for (const Evaluator::Outcome& outcome : *outcomes) {
    EvaluationRecord record;
    record.set_step(progress_.step);
    record.set_held_out(outcome.held_out);
    record.set_loss(outcome.loss);
    record.set_bits_per_token(outcome.loss / std::numbers::ln2);
    if (outcome.bits_per_byte) record.set_bits_per_byte(*outcome.bits_per_byte);
    record.set_valid_tokens(static_cast<std::uint64_t>(outcome.valid_targets));
    record.set_seconds(outcome.seconds);
    tell(record, [](Observer& observer, const EvaluationRecord& r) { observer.on_evaluation(r); });
  }
  return true;
}

void Trainer::save() {
  if (!state_) return;
  const auto begin = std::chrono::steady_clock::now();
  control_.phase("checkpoint", progress_.step);
  const TraceSpan span(TraceKind::phase, "checkpoint");
  progress_.batches_position = rows_.position();
  state_->save(progress_, static_cast<int>(job_.checkpoint().keep_last()));
  saved_step_ = progress_.step;
  const double seconds = seconds_since(begin);
  tell_event(RunEvent::CHECKPOINT, fmt::format("written in {:.2f} s", seconds), seconds);
}

template <class Record, class Call>
void Trainer::tell(const Record& record, Call call) {
  if (engine_.context().rank == 0) call(observer_, record);
}

void Trainer::tell_event(int kind, std::string text, std::optional<double> seconds) {
  RunEvent event;
  if (seconds) event.set_seconds(*seconds);
  event.set_kind(static_cast<RunEvent::Kind>(kind));
  event.set_step(progress_.step);
  event.set_text(std::move(text));
  tell(event, [](Observer& observer, const RunEvent& e) { observer.on_event(e); });
}

}  // namespace ananke
