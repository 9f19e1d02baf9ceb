// A long run takes no more memory than its first two steps: neither a rank's arenas, nor the process.
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <set>

#include "runtime/engine/alone.h"
#include "runtime/engine/trainer.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr std::uint64_t steps = 10'000;

// What an arena has given away: by purpose, bytes now and at most, and pieces.
std::string taken_of(const Arena& arena) {
  std::string text = fmt::format("{} bytes, at most {}", arena.used(), arena.peak());
  for (const Arena::Line& line : arena.ledger()) {
    text += fmt::format("\n  {}: {} bytes in {} pieces", line.purpose, line.bytes, line.allocations);
  }
  return text + fmt::format("\n  {} purposes", arena.history().size());
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Looks at its rank's memory where a step begins.
class Watcher final : public Alone {
 public:
  using Alone::Alone;
  void phase(std::string_view what, std::uint64_t step) override {
    if (what != "step" || step < 3 || device == nullptr) return;
    const std::string now = taken_of(device->memory()) + "\n" + taken_of(device->host_memory());
    if (step == 3) {
      first_ = now;
    } else if (now != first_ && !grown_) {
      grown_ = true;
      ADD_FAILURE() << "rank " << rank() << ", after step " << step - 1 << ":\n"
                    << now << "\nafter step 2:\n"
                    << first_;
    }
    if (rank() == 0 && step % 100 == 0) resident.push_back(resident_bytes());
  }
  void on_step(const StepRecord& record) override {
    for (const std::uint64_t load : record.routing().load_max()) loads.insert(load);
  }
  Device* device = nullptr;
  std::vector<std::uint64_t> resident;  // every 100 steps
  std::set<std::uint64_t> loads;        // of the fullest experts

 private:
  std::string first_;
  bool grown_ = false;
};

// Experts shared out over two of four ranks: what these send each other has another size in every step.
TEST(MemoryGrowth, TenThousandStepsTakeWhatTwoDo) {
  const TemporaryFolder folder;
  Job job = small_job(folder.path() / "run",
                      fmt::format("mesh {{ shard: 4 expert: 2 expert_shard: 2 }} model {{ initializer_range: 0.5 }} "
                                  "training {{ steps: {} rows_per_microbatch: 1 }} checkpoint {{ none: true }} "
                                  "evaluation {{ every_steps: 0 }}",
                                  steps));
  add_plugin(job, "ep", "chunks: 2");
  std::mutex mutex;
  std::vector<std::uint64_t> resident;
  std::set<std::uint64_t> loads;
  run_roles(job, {1, 4, 2}, [&](const RoleContext& context, EngineRoles& roles, Rendezvous& rendezvous) {
    Watcher watcher(context.rank, context.mesh.ranks());
    Trainer trainer(std::move(roles), context, rendezvous, watcher, watcher);
    trainer.start(false);
    watcher.device = &trainer.engine().device();
    trainer.train();
    EXPECT_EQ(trainer.progress().step, steps);
    std::lock_guard lock(mutex);
    if (context.rank != 0) return;
    resident = watcher.resident;
    loads = watcher.loads;
  });
  EXPECT_GT(loads.size(), 10U) << "routing is always the same: the test shows little";
  ASSERT_EQ(resident.size(), steps / 100);
  // The C library's heap settles within the first hundreds of steps; after that a kilobyte a step would be ten times
  // this.
  constexpr std::uint64_t noise = 1 << 20;
  EXPECT_LE(resident.back(), resident[4] + noise) << resident.front() << " after 100 steps";
  RecordProperty("resident after 100, 500 and all steps",
                 fmt::format("{} {} {}", resident.front(), resident[4], resident.back()));
}

}  // namespace
}  // namespace ananke
