// The factor that every optimizer's own learning rate is multiplied by.
#pragma once

#include <cstdint>

namespace ananke {

class LearningRate;  // proto/ananke/job.proto

// For step 1..: a pure function, so a resumed job follows the same curve. `steps` is the job's length, which the
// schedule's total_steps replaces where it is set. Past the end the last value holds.
double learning_rate_factor(const LearningRate& schedule, std::uint64_t steps, std::uint64_t step);

}  // namespace ananke
