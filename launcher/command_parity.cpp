// ananke parity: our model against a recorded Hugging Face case.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/read_file.h"
#include "runtime/engine/parity.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

// What users see and give; the defaults of ParityOptions are those of fp32.
struct Tolerances {
  double logits, loss, gradients;
};
// bf16, where nothing better is known of the case (bf16_of): of cases in which every router decides as in fp32. Where a
// near tie falls the other way, a token's experts are others, and differences are as large as what an expert adds.
constexpr Tolerances fp32{2e-5, 1e-6, 1e-4}, bf16{6e-2, 3e-3, 6e-2};

// Twice what PyTorch in bf16 differs by, if that was measured. A loss is one number, near the right one by luck, so of
// that at least the usual.
Tolerances bf16_of(const std::filesystem::path& measured) {
  if (!std::filesystem::exists(measured)) return bf16;
  const Json errors = Json::parse(read_file(measured, ErrorKind::data), measured.string());
  const auto twice = [&](const char* name) {
    const Json* value = errors.find(name);
    const std::optional<double> error = value ? value->as_double() : std::nullopt;
    if (!error || *error < 0) {
      fail(ErrorKind::data,
           "{}: {} is {}, and must be a number, how far PyTorch in bf16 is off; write it anew with "
           "tests/golden/measure_bf16.py",
           measured.string(), name, value ? value->brief() : "not there");
    }
    return 2 * *error;
  };
  return {twice("logits"), std::max(twice("loss"), bf16.loss), twice("gradients")};
}

struct Given {
  std::string compute;
  double logits = 0, loss = 0, gradients = 0;
};

std::string default_text(double in_fp32, double in_bf16, const char* what) {
  return fmt::format("{}; default: {:.0e}, with bf16 twice that of bf16.json beside the case, else {:.0e}", what,
                     in_fp32, in_bf16);
}

void add_options(CommandOptions& to, ParityOptions& options, Given& given) {
  auto add = to.add();
  add("ranks", po::value(&options.ranks)->value_name("N")->default_value(1),
      "ranks, as threads; rows are dealt to them in turn");
  add("processes", po::bool_switch(&options.processes), "ranks are processes: what backend_cuda asks for");
  add("replicate", po::value(&options.replicate)->value_name("N")->default_value(1), "whole copies among the ranks");
  add("expert", po::value(&options.expert)->value_name("N")->default_value(1),
      "ranks that share out the experts and exchange tokens (plugin ep)");
  add("backend", po::value(&options.backend)->value_name("PLUGIN")->default_value("backend_host"),
      "what computes; with backend_cuda every rank takes a GPU");
  add("recompute", po::bool_switch(&options.recompute), "recompute every block before its backward");
  add("compute", po::value(&given.compute)->value_name("TYPE")->default_value("fp32"),
      "fp32 or bf16: what activations, gathered weights and products are (training.compute)");
  const auto tolerance = [&](const char* name, double& value, double in_fp32, double in_bf16, const char* what) {
    add(name, po::value(&value)->value_name("X"), default_text(in_fp32, in_bf16, what).c_str());
  };
  tolerance("logits-tolerance", given.logits, fp32.logits, bf16.logits, "absolute");
  tolerance("loss-tolerance", given.loss, fp32.loss, bf16.loss, "absolute");
  tolerance("gradient-tolerance", given.gradients, fp32.gradients, bf16.gradients, "of a tensor's largest element");
}

void take(const CommandOptions& command, const Given& given, ParityOptions& options) {
  if (given.compute != "fp32" && given.compute != "bf16") {
    fail(ErrorKind::usage, "--compute {} is nothing to compute in; give fp32 or bf16", given.compute);
  }
  options.compute = given.compute == "bf16" ? DType::bf16 : DType::f32;
  const Tolerances defaults = given.compute == "bf16" ? bf16_of(options.case_file.parent_path() / "bf16.json") : fp32;
  options.logits_tolerance = command.given("logits-tolerance") ? given.logits : defaults.logits;
  options.loss_tolerance = command.given("loss-tolerance") ? given.loss : defaults.loss;
  options.gradient_tolerance = command.given("gradient-tolerance") ? given.gradients : defaults.gradients;
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
  Given given;
  std::string folder, case_file;
  CommandOptions command("parity", "HF_FOLDER [CASE_FILE] [options]",
                         "Runs the folder's model (config.json, safetensors) on the case's input_ids and compares\n"
                         "logits, loss and every grad.* with the case, a safetensors file. The case is\n"
                         "HF_FOLDER/case.safetensors where it is not given. Exit code 7 past a tolerance.");
  add_options(command, options, given);
  command.word("HF_FOLDER", folder);
  command.word("CASE_FILE", case_file, false);
  if (!command.read(arguments)) return 0;
  options.folder = folder;
  options.case_file = case_file.empty() ? options.folder / "case.safetensors" : std::filesystem::path(case_file);
  take(command, given, options);
  const std::vector<ParityLine> lines = run_parity(options);
  print(lines);
  for (const ParityLine& line : lines) {
    if (!line.within) return static_cast<int>(ErrorKind::numeric);
  }
  return 0;
}

}  // namespace ananke
