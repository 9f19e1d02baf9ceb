// What the routers' statistics cost: load, entropy and range of the biases in every step record, against the same steps
// without them. Steps with and without take turns in one run, so that both see the same machine; time is that of all
// processors together, which other programs do not lengthen.
//   router_statistics_bench [steps [--set like overrides of the job ...]]
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>

#include "ananke/job.pb.h"
#include "ananke/telemetry.pb.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/engine/plugin_bench.h"
#include "runtime/engine/trainer.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class SwitchedRouter final : public Router {
 public:
  SwitchedRouter(Router& inner, const bool& on) : inner_(inner), on_(on) {}
  std::size_t saved(const Sizes& s) const override { return inner_.saved(s); }
  std::size_t workspace(const Sizes& s) const override { return inner_.workspace(s); }
  void forward(Stream& stream, const Forward& a) override {
    Forward less = a;
    if (!on_) less.statistics = {};
    inner_.forward(stream, less);
  }
  void backward(Stream& stream, const Backward& a) override { inner_.backward(stream, a); }

 private:
  Router& inner_;
  const bool& on_;
};

// The job has neither losses nor biases of balancing: statistics serve the step record alone.
class SwitchedBalance final : public RouterBalance {
 public:
  SwitchedBalance(RouterBalance& inner, const bool& on) : inner_(inner), on_(on) {}
  void collect(Stream& stream, const Collect& a) override { inner_.collect(stream, a); }
  void factors(Stream& stream, const Factors& a) override { inner_.factors(stream, a); }
  void update_bias(Stream& stream, const UpdateBias& a) override { inner_.update_bias(stream, a); }
  void load(Stream& stream, const Load& a) override {
    if (on_) inner_.load(stream, a);
  }
  void summarise(Stream& stream, const Summarise& a) override {
    if (on_) inner_.summarise(stream, a);
  }

 private:
  RouterBalance& inner_;
  const bool& on_;
};

class SwitchedBackend final : public Backend {
 public:
  SwitchedBackend(std::unique_ptr<Backend> inner, const bool& on)
      : inner_(std::move(inner)),
        operators_(inner_->operators()),
        router_(*operators_.router, on),
        balance_(*operators_.router_balance, on) {
    operators_.router = &router_;
    operators_.router_balance = &balance_;
  }
  Device& device() override { return inner_->device(); }
  const OperatorSet& operators() override { return operators_; }
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override {
    return inner_->make_communicator(name, ranks, rendezvous);
  }

 private:
  std::unique_ptr<Backend> inner_;
  OperatorSet operators_;
  SwitchedRouter router_;
  SwitchedBalance balance_;
};

// Takes the time of every step, and throws the switch after it.
class Clock final : public Observer, public RunControl {
 public:
  void on_step(const StepRecord& record) override {
    const double now = cpu_seconds();
    constexpr std::uint64_t warm = 4;
    if (record.step() > warm) (on ? with : without).push_back(now - before_);
    on = !on;
    before_ = cpu_seconds();
  }
  void on_evaluation(const EvaluationRecord&) override {}
  void on_event(const RunEvent&) override {}
  bool stop_requested() const override { return false; }
  void phase(std::string_view, std::uint64_t) override {}
  void console(const std::string&) override {}

  bool on = true;
  std::vector<double> with, without;

 private:
  double before_ = 0;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values.at(values.size() / 2);
}

// The ratio of a step with statistics to one without.
double measure(const char* score, std::vector<std::string> overrides) {
  const TemporaryFolder folder;
  overrides.insert(overrides.begin(),
                   {"mesh.shard=1", "training.rows_per_step=16", "training.rows_per_microbatch=8",
                    "evaluation.every_steps=0", "checkpoint.every_steps=0", "model.num_experts=64",
                    "model.num_experts_per_tok=4", "model.moe_intermediate_size=48",
                    "run_dir=" + folder.path().string(), std::string("model.scoring_func=") + score});
  PluginBench bench(std::filesystem::path(ANANKE_SOURCE_DIR) / "site/local/jobs/smoke.textproto", overrides);
  Clock clock;
  EngineRoles roles = std::move(bench.roles());
  roles.backend = std::make_unique<SwitchedBackend>(std::move(roles.backend), clock.on);
  run_rank_threads(1, std::chrono::seconds(600), [&](int, Rendezvous& rendezvous) {
    Trainer trainer(std::move(roles), bench.context(), rendezvous, clock, clock);
    trainer.start(false);
    trainer.train();
  });
  const Model& model = bench.job().model();
  const double with = median(clock.with), without = median(clock.without);
  std::printf("%-8s %2u experts, top %u: %.2f ms a step with statistics, %.2f ms without, ratio %.4f\n", score,
              model.num_experts(), model.num_experts_per_tok(), 1e3 * with, 1e3 * without, with / without);
  return with / without;
}

}  // namespace
}  // namespace ananke

int main(int argc, char** argv) {
  std::vector<std::string> overrides = {std::string("training.steps=") + (argc > 1 ? argv[1] : "64")};
  for (int i = 2; i < argc; ++i) overrides.emplace_back(argv[i]);
  try {
    double worst = 0;
    for (const char* score : {"SOFTMAX", "SIGMOID"}) worst = std::max(worst, ananke::measure(score, overrides));
    if (worst <= 1.02) return 0;
    std::fprintf(stderr, "router_statistics_bench: statistics take %.2f of a step, more than 0.02\n", worst - 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "router_statistics_bench: %s\n", error.what());
  }
  return 1;
}
