// Initial weights: a pure function of (seed, parameter name, element index), whatever the mesh and the device; or those
// of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/model/parameter_table.h"
#include "runtime/roles/parameters.h"

namespace ananke {

class HuggingfaceWeights;  // checkpoint/huggingface.h

// Elements [begin, begin + out.size()) of a parameter: norms are 1; everything else is a normal of deviation
// `initializer_range`, truncated at three deviations.
void initial_weights(const Parameter& parameter, std::uint64_t seed, double initializer_range, std::int64_t begin,
                     std::span<float> out);

// Host memory that both of the following take while they run.
std::vector<PlanLine> initial_weights_plan(std::span<const Fragment> owned);

// Fills every owned fragment on the device, rounded where it is stored narrower, by so many host threads. Waits for the
// copies.
void initialise(Device& device, const ParameterTable& table, std::span<const OwnedFragment> fragments,
                std::uint64_t seed, double initializer_range, int threads = 1);
// Likewise, with what this rank owns of `weights`; each rank reads its own part only. `router_biases`: f32 [layers, E]
// in the order of table.buffers(), which every rank holds; may be empty.
void load_weights(Device& device, const ParameterTable& table, std::span<const OwnedFragment> fragments,
                  const HuggingfaceWeights& weights, const TensorView& router_biases);

}  // namespace ananke
