#include "runtime/engine/slow_rank.h"

#include "ananke/telemetry.pb.h"

namespace ananke {

std::optional<std::uint32_t> SlowRankWatch::see(const StepRecord& record) {
  const WorkRecord& work = record.work();
  const bool slow = work.straggler() >= much;
  steps_ = !slow ? 0 : steps_ > 0 && rank_ == work.straggler_rank() ? steps_ + 1 : 1;
  rank_ = work.straggler_rank();
  if (steps_ < again) return std::nullopt;
  const auto told = told_.find(rank_);
  if (told != told_.end() && record.step() < told->second + repeat) return std::nullopt;
  told_[rank_] = record.step();
  return rank_;
}

}  // namespace ananke
