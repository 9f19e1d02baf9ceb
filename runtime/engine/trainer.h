// The step loop of one rank: rows, pass, agreement, update, evaluation, checkpoints.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/evaluator.h"
#include "runtime/engine/replica_check.h"
#include "runtime/engine/routing_tape.h"
#include "runtime/engine/rows_ahead.h"
#include "runtime/engine/run_control.h"
#include "runtime/engine/slow_rank.h"
#include "runtime/engine/state_checkpoint.h"
#include "runtime/engine/step_tracer.h"
#include "runtime/engine/step_work.h"
#include "runtime/engine/traffic_counter.h"
#include "runtime/roles/observer.h"

namespace ananke {

enum class TrainingEnd { finished, stopped };

// What changed between the job that wrote a checkpoint and this one, a line each; throws where a change cannot be.
using ChangesSince = std::function<std::vector<std::string>(const LoadedState& checkpoint)>;

class Trainer {
 public:
  // Roles are built, nothing is allocated. All arguments outlive the trainer. `observer` is only called on rank 0.
  Trainer(EngineRoles roles, const RoleContext& context, Rendezvous& rendezvous, RunControl& control,
          Observer& observer);
  ~Trainer() { engine_.settle(); }

  const Schedule& schedule() const { return schedule_; }  // of a step
  // Memory of this rank by purpose: what comes from the device's arenas, and what is taken beside them, by the backend
  // mostly.
  std::vector<PlanLine> plan() const;
  std::vector<PlanLine> other_plan() const;
  // Device, communicators, memory; weights from the seed or the job's initial_weights, or from the newest complete
  // checkpoint when `resume` is set and there is one.
  void start(bool resume, const ChangesSince& changes = {});
  // Until the last step or until some rank is asked to stop. Either way the state is in a checkpoint on return.
  TrainingEnd train();

  const TrainingProgress& progress() const { return progress_; }
  const std::vector<std::string>& optimizer_names() const { return optimizer_names_; }  // of each parameter
  const MatrixWork& matrix_work() const { return matrix_work_; }
  Engine& engine() { return engine_; }
  const OptimizerStep& optimizer() const { return *optimizer_; }  // once started

 private:
  HostState host_state() const;
  void resume(const ChangesSince& changes);
  void compare_matrix_work();
  void make_weights();
  bool train_step();  // false: some rank was asked to stop
  void update(double lr_factor);
  void report_step(const StepScalars::Outcome& outcome, double seconds, double lr_factor);
  void compare_memory();
  void report_memory(StepRecord& record);
  void report_offload(StepRecord& record);
  void report_routing(const StepScalars::Outcome& outcome, StepRecord& record) const;
  void check_finite(const StepScalars::Outcome& outcome);
  std::string of_some_rank(const std::string& what, const std::string& mine);
  Traffic traffic() const;  // of all roles and the optimizers
  bool evaluate();          // false: some rank was asked to stop, and nothing is reported
  void save();
  template <class Record, class Call>
  void tell(const Record& record, Call call);
  void tell_event(int kind, std::string text, std::optional<double> seconds = {});
  void tell_slow_rank(const StepRecord& record);

  const Job& job_;
  Rendezvous& rendezvous_;
  RunControl& control_;
  Observer& observer_;
  Engine engine_;
  PassLimits limits_;
  std::vector<std::string> optimizer_names_;  // per parameter
  MatrixWork matrix_work_;
  Schedule schedule_;
  std::unique_ptr<Batches> batches_;
  RowsAhead rows_;
  std::vector<HeldOutBatches> held_out_;  // goes to the evaluator
  bool evaluates_;
  Checkpoints checkpoints_;

  // Made by start(), in this order.
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<StepScalars> scalars_;
  std::unique_ptr<OptimizerStep> optimizer_;
  std::unique_ptr<StateCheckpoint> state_;  // null where the job wants no checkpoints
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<RoutingTape> routing_;
  std::unique_ptr<ReplicaCheck> replicas_;  // null: not asked for

  TrainingProgress progress_;
  std::optional<std::uint64_t> saved_step_, evaluated_step_;
  Device::MemoryUse memory_;  // as of start, of the rank that has most
  std::uint64_t reads_ = 0;   // as of the beginning of the step
  ActivationTraffic moved_;   // likewise
  TrafficCounter traffic_;
  StepWork work_;
  SlowRankWatch slow_rank_;
  StepTracer tracer_;  // last: a step that an error ends is written as far as it came
};

// Sizes of a job's passes, as plan() and start() use them.
PassLimits pass_limits(const Job& job);

// Who updates which whole matrices, and in which rounds: the same on every rank. `optimizer_names`: of each parameter.
MatrixWork make_matrix_work(const Engine& engine, const std::vector<std::string>& optimizer_names);

}  // namespace ananke
