// A step is told twice, by two observers as of a run and its resume. Argument: the job file.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "ananke/telemetry.pb.h"
#include "runtime/engine/plugin_bench.h"

using namespace ananke;

int main(int, char** argv) {
  const std::filesystem::path folder = std::filesystem::current_path() / "@NAME@_test_run";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  PluginBench bench(argv[1], {"run_dir=" + folder.string(), "plugins.@NAME@.file=steps.csv"});
  StepRecord record;
  record.set_step(7);
  record.set_loss(1.5);
  record.set_learning_rate(0.25);
  record.set_tokens_per_second(1000);
  for (int run = 0; run < 2; ++run) bench.make_observer("@NAME@")->on_step(record);

  std::ifstream file(folder / "steps.csv");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const bool right = text == "step,loss,learning_rate,tokens_per_second\n7,1.5,0.25,1000.0\n7,1.5,0.25,1000.0\n";
  std::puts(right ? "ok" : ("FAILED: steps.csv holds\n" + text).c_str());
  return right ? 0 : 1;
}
