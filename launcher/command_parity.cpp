// ananke parity: our model against a recorded Hugging Face case.
#include <boost/program_options.hpp>
#include <cstdio>
#include <sstream>

#include "launcher/command.h"
#include "runtime/base/error.h"
#include "runtime/engine/parity.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

po::options_description describe(ParityOptions& options) {
  po::options_description visible("options");
  auto add = visible.add_options();
  add("help,h", "this text");
  add("ranks", po::value(&options.ranks)->default_value(1), "ranks, as threads; rows are dealt to them in turn");
  add("replicate", po::value(&options.replicate)->default_value(1), "whole copies among the ranks");
  add("recompute", po::bool_switch(&options.recompute), "recompute every block before its backward");
  add("logits-tolerance", po::value(&options.logits_tolerance)->default_value(2e-5, "2e-5"), "absolute");
  add("loss-tolerance", po::value(&options.loss_tolerance)->default_value(1e-6, "1e-6"), "absolute");
  add("gradient-tolerance", po::value(&options.gradient_tolerance)->default_value(1e-4, "1e-4"),
      "of a tensor's largest element");
  return visible;
}

void print(const std::vector<ParityLine>& lines) {
  std::printf("%-10s %8s %14s %14s %10s  %s\n", "kind", "tensors", "largest abs", "relative", "tolerance", "worst");
  for (const ParityLine& line : lines) {
    std::printf("%-10s %8zu %14.3e %14.3e %10.1e  %s%s\n", line.kind.c_str(), line.tensors, line.absolute,
                line.relative, line.tolerance, line.worst.c_str(), line.within ? "" : "  TOO FAR");
  }
}

}  // namespace

int command_parity(const std::vector<std::string>& arguments) {
  ParityOptions options;
  std::string folder, case_file;
  const po::options_description visible = describe(options);
  po::options_description all;
  all.add(visible).add_options()("folder", po::value(&folder))("case", po::value(&case_file));
  po::positional_options_description places;
  places.add("folder", 1).add("case", 1);
  po::variables_map values;
  try {
    po::store(po::command_line_parser(arguments).options(all).positional(places).run(), values);
    po::notify(values);
  } catch (const po::error& error) {
    fail(ErrorKind::usage, "parity: {}; `ananke parity --help` lists the options", error.what());
  }
  if (values.count("help") || folder.empty()) {
    std::printf(
        "usage: ananke parity HF_FOLDER [CASE.safetensors] [options]\n\nRuns the folder's model (config.json, "
        "safetensors) on the case's input_ids and compares logits, loss and every grad.* with the case.\nThe "
        "case is HF_FOLDER/case.safetensors where it is not given.\n\n");
    std::ostringstream text;
    text << visible;
    std::printf("%s", text.str().c_str());
    return values.count("help") ? 0 : static_cast<int>(ErrorKind::usage);
  }
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
