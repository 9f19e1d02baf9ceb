#include "runtime/engine/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ananke/job.pb.h"

namespace ananke {

double learning_rate_factor(const LearningRate& schedule, std::uint64_t steps, std::uint64_t step) {
  const double total = static_cast<double>(schedule.total_steps() ? schedule.total_steps() : steps);
  const double warmup = schedule.warmup_steps();
  const double s = std::min(static_cast<double>(step), total);
  if (s < warmup) return s / warmup;
  const double low = schedule.minimum_factor();
  switch (schedule.shape()) {
    case LearningRate::CONSTANT: return 1;
    case LearningRate::WARMUP_STABLE_DECAY: {
      const double decay = schedule.decay_steps();
      return s <= total - decay ? 1 : low + (1 - low) * (total - s) / decay;
    }
    case LearningRate::COSINE: {
      const double done = total > warmup ? (s - warmup) / (total - warmup) : 1;
      return low + (1 - low) * 0.5 * (1 + std::cos(std::numbers::pi * done));
    }
  }
  return 1;
}

}  // namespace ananke
