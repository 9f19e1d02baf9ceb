#include "runtime/engine/initial_weights.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/engine/stored_values.h"

namespace ananke {

void initial_weights(const Parameter& parameter, std::uint64_t seed, double initializer_range, std::int64_t begin,
                     std::span<float> out) {
  if (parameter.kind == ParameterKind::norm) {
    std::fill(out.begin(), out.end(), 1.0F);
    return;
  }
  const RandomKey key(seed, parameter.name);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(initializer_range * key.truncated_normal(static_cast<std::uint64_t>(begin) + i));
  }
}

namespace {

constexpr std::int64_t chunk = 1 << 22;  // elements that are made at a time

// Fills every fragment piece by piece: make(parameter, first element, values).
template <class Make>
void fill(Device& device, const ParameterTable& table, std::span<const OwnedFragment> fragments, Make make) {
  std::int64_t largest = 0;
  for (const OwnedFragment& fragment : fragments) largest = std::max(largest, fragment.where.count);
  const std::int64_t elements = std::min(largest, chunk);
  Buffer staging = device.host_memory().allocate(static_cast<std::size_t>(elements) * sizeof(float), "initial weights");
  Stream& stream = device.stream(Resource::compute);
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    for (std::int64_t done = 0; done < fragment.where.count; done += chunk) {
      const std::int64_t count = std::min(chunk, fragment.where.count - done);
      float* values = staging.view(DType::f32, {count}).as<float>();
      make(parameter, fragment.where.begin + done, std::span<float>(values, static_cast<std::size_t>(count)));
      const TensorView to = fragment.weight.slice(done, count);
      narrow({values, static_cast<std::size_t>(count)}, to.dtype, values);
      device.copy(stream, to.data, values, to.bytes());
      stream.synchronize();  // the staging piece is used again
    }
  }
}

}  // namespace

std::vector<PlanLine> initial_weights_plan(std::span<const Fragment> owned) {
  std::int64_t largest = 0;
  for (const Fragment& fragment : owned) largest = std::max(largest, fragment.count);
  return {{"initial weights", Place::host, static_cast<std::uint64_t>(std::min(largest, chunk)) * sizeof(float),
           Lifetime::start}};
}

void initialise(Device& device, const ParameterTable& table, std::span<const OwnedFragment> fragments,
                std::uint64_t seed, double initializer_range, int threads) {
  constexpr std::size_t worth_a_thread = 1 << 16;  // elements: a millisecond
  fill(device, table, fragments, [&](const Parameter& parameter, std::int64_t begin, std::span<float> values) {
    const std::size_t each = std::max(worth_a_thread, values.size() / static_cast<std::size_t>(threads) + 1);
    std::vector<std::jthread> helpers;
    for (std::size_t at = each; at < values.size(); at += each) {
      helpers.emplace_back([&, at] {
        initial_weights(parameter, seed, initializer_range, begin + static_cast<std::int64_t>(at),
                        values.subspan(at, std::min(each, values.size() - at)));
      });
    }
    initial_weights(parameter, seed, initializer_range, begin, values.first(std::min(each, values.size())));
  });
}

void load_weights(Device& device, const ParameterTable& table, std::span<const OwnedFragment> fragments,
                  const HuggingfaceWeights& weights, const TensorView& router_biases) {
  fill(device, table, fragments, [&](const Parameter& parameter, std::int64_t begin, std::span<float> values) {
    weights.read(parameter.name, values, begin);
  });
  if (!router_biases) return;
  Buffer staging = device.host_memory().allocate(router_biases.bytes(), "initial weights");
  auto* values = staging.view(DType::f32, router_biases.shape).as<float>();
  std::size_t at = 0;
  for (const Parameter& bias : table.buffers()) {
    const auto count = static_cast<std::size_t>(bias.shape.elements());
    weights.read(bias.name, {values + at, count});
    at += count;
  }
  Stream& stream = device.stream(Resource::compute);
  device.copy(stream, router_biases.data, values, router_biases.bytes());
  stream.synchronize();
}

}  // namespace ananke
