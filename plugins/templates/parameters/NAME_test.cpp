// Two ranks, as threads, walk through a step: gradients are summed over both. Argument: the job file.
#include <cstdio>
#include <cstdlib>
#include <map>

#include "runtime/comm/rank_threads.h"
#include "runtime/engine/plugin_bench.h"

using namespace ananke;

void expect(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "FAILED: %s\n", what), std::exit(1);
}

// Weights of 1 and 2 in turn.
void fill(PluginBench& bench, Parameters& parameters) {
  for (const OwnedFragment& one : parameters.fragments()) {
    std::vector<float> values(static_cast<std::size_t>(one.where.count), 1);
    for (std::size_t i = 1; i < values.size(); i += 2) values[i] = 2;
    bench.write(one.weight, values);
  }
  parameters.updated();
}

// Every item adds 1 to each element of its gradients. Returns the number of items of each unit.
std::map<int, float> step(PluginBench& bench, Parameters& parameters, const Schedule& schedule) {
  std::map<int, float> items;
  parameters.begin(schedule);
  for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
    const Item& item = schedule[static_cast<std::size_t>(i)];
    for (const UnitUse& use : item.units) {
      const UnitViews views = parameters.acquire(i, use.unit);
      if (use.needs_weights) {
        for (const TensorView& segment : views.weights.segments) {
          const std::vector<float> weights = bench.values(segment);
          expect(weights.size() < 2 || (weights[0] == 1 && weights[1] == 2), "the weights");
        }
      }
      if (item.phase != Phase::forward) {
        for (const TensorView& gradient : views.gradient.segments) {
          std::vector<float> values = bench.values(gradient);
          for (float& value : values) value = (views.write_gradient ? 0 : value) + 1;
          bench.write(gradient, values);
        }
        parameters.reduce(i, use.unit);
        ++items[use.unit];
      }
      parameters.release(i, use.unit);
    }
  }
  parameters.finish();
  return items;
}

void run_rank(const char* job, const std::string& overlap, int rank, Rendezvous& rendezvous) {
  PluginBench bench(job, {"plugins.@NAME@.overlap=" + overlap}, 2, rank);
  Engine& engine = bench.start(rendezvous);
  Parameters& parameters = engine.parameters();
  fill(bench, parameters);
  const Schedule schedule = training_schedule(engine.table(), 2, LoopOrder::microbatch_outer);
  for (int i = 0; i < 2; ++i) {  // the second time shows that a step begins with zeros
    std::map<int, float> items = step(bench, parameters, schedule);
    for (const OwnedFragment& one : parameters.fragments()) {
      const float sum = 2 * items[one.where.unit];
      for (float value : bench.values(one.gradient)) expect(value == sum, "the sum over both ranks");
    }
  }
  expect(bytes_of(parameters.traffic(), Direction::reduce) > 0, "bytes are counted");
}

int main(int, char** argv) {
  for (const char* overlap : {"true", "false"}) {
    run_rank_threads(2, std::chrono::seconds(30), [&](int rank, Rendezvous& rendezvous) {
      run_rank(argv[1], overlap, rank, rendezvous);
    });
  }
  std::puts("ok");
}
