// ananke parity: our model against a recorded Hugging Face case.
#include <cstdio>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/engine/parity.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

void add_options(CommandOptions& to, ParityOptions& options) {
  auto add = to.add();
  add("ranks", po::value(&options.ranks)->value_name("N")->default_value(1),
      "ranks, as threads; rows are dealt to them in turn");
  add("replicate", po::value(&options.replicate)->value_name("N")->default_value(1), "whole copies among the ranks");
  add("expert", po::value(&options.expert)->value_name("N")->default_value(1),
      "ranks that share out the experts and exchange tokens (plugin ep)");
  add("backend", po::value(&options.backend)->value_name("PLUGIN")->default_value("backend_host"),
      "what computes; with backend_cuda every rank takes a GPU");
  add("recompute", po::bool_switch(&options.recompute), "recompute every block before its backward");
  add("logits-tolerance", po::value(&options.logits_tolerance)->value_name("X")->default_value(2e-5, "2e-5"),
      "absolute");
  add("loss-tolerance", po::value(&options.loss_tolerance)->value_name("X")->default_value(1e-6, "1e-6"), "absolute");
  add("gradient-tolerance", po::value(&options.gradient_tolerance)->value_name("X")->default_value(1e-4, "1e-4"),
      "of a tensor's largest element");
}

void print(const std::vector<ParityLine>& lines) {
  std::printf("%-10s %8s %14s %14s %10s  %s\n", "kind", "tensors", "largest abs", "relative", "tolerance", "worst");
  for (const ParityLine& line : lines) {
    std::printf("%-10s %8zu %14.3e %14.3e %10.1e  %s%s\n", line.kind.c_str(), line.tensors, line.absolute,
                line.relative, line.tolerance, line.worst.c_str(), line.within ? "" : "  TOO FAR");
  }
}

}  // namespace

int command_parity(const Arguments& arguments) {
  ParityOptions options;
  std::string folder, case_file;
  CommandOptions command("parity", "HF_FOLDER [CASE_FILE] [options]",
                         "Runs the folder's model (config.json, safetensors) on the case's input_ids and compares\n"
                         "logits, loss and every grad.* with the case, a safetensors file. The case is\n"
                         "HF_FOLDER/case.safetensors where it is not given. Exit code 7 past a tolerance.");
  add_options(command, options);
  command.word("HF_FOLDER", folder);
  command.word("CASE_FILE", case_file, false);
  if (!command.read(arguments)) return 0;
  options.folder = folder;
  options.case_file = case_file.empty() ? options.folder / "case.safetensors" : std::filesystem::path(case_file);
  const std::vector<ParityLine> lines = run_parity(options);
  print(lines);
  for (const ParityLine& line : lines) {
    if (!line.within) return static_cast<int>(ErrorKind::numeric);
  }
  return 0;
}

}  // namespace ananke
