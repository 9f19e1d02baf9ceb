// `ananke export` and `ananke import`: between checkpoints, jobs and Hugging Face folders.
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/checkpoint/huggingface_export.h"
#include "runtime/checkpoint/reader.h"

namespace ananke {
namespace {

namespace po = boost::program_options;
using Clock = std::chrono::steady_clock;

SafetensorsType parse_dtype(const CommandOptions& options, const std::string& text) {
  if (text == "bf16") return SafetensorsType::bf16;
  if (text == "fp32") return SafetensorsType::f32;
  options.misused(fmt::format("--dtype is '{}'; there are: bf16, fp32", text));
}

std::uint64_t parse_shard_size(const CommandOptions& options, const std::string& text) {
  std::uint64_t bytes = 0;
  try {
    bytes = parse_bytes(text);
  } catch (const Error& error) {
    options.misused(fmt::format("--shard-size: {}", error.what()));
  }
  if (bytes == 0) options.misused("--shard-size is 0; give a size like 5GB");
  return bytes;
}

// Rewritten in place on a terminal, silent elsewhere.
class ProgressLine {
 public:
  void operator()(std::uint64_t done, std::uint64_t total) {
    if (!terminal_ || (Clock::now() - last_ < std::chrono::milliseconds(500) && done < total)) return;
    last_ = Clock::now();
    std::fprintf(stderr, "\rexported %s of %s\x1b[K%s", format_bytes(done).c_str(), format_bytes(total).c_str(),
                 done == total ? "\n" : "");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  Clock::time_point last_ = Clock::now();
};

// As a job file has it.
std::string model_block(const Model& model) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  printer.SetInitialIndentLevel(1);
  std::string text;
  printer.PrintToString(model, &text);
  return "model {\n" + text + "}\n";
}

}  // namespace

int command_export(const Arguments& arguments) {
  std::string from, output, dtype, shard_size;
  CommandOptions options(
      "export", "CHECKPOINT_OR_RUN_DIR --output FOLDER [options]",
      "Writes the weights of a checkpoint, or of the newest usable one of a run, as a folder that Hugging Face\n"
      "transformers opens: config.json and safetensors, every expert's matrices as tensors of their own.\n"
      "Beside them go the tokenizer's files and generation_config.json of the folder that the job began with, or the\n"
      "SentencePiece model of the store that it trained on, where they still are.");
  options.add()("output,o", po::value(&output)->value_name("FOLDER"), "folder to write; it must not exist yet")(
      "dtype", po::value(&dtype)->value_name("bf16|fp32")->default_value("bf16"),
      "type of the tensors: fp32 is exact, bf16 rounded to nearest even")(
      "shard-size", po::value(&shard_size)->value_name("SIZE")->default_value("5GB"), "most bytes of tensors per file");
  options.word("CHECKPOINT_OR_RUN_DIR", from);
  if (!options.read(arguments)) return 0;
  if (output.empty()) options.misused("--output is missing");
  ExportOptions target{output, parse_dtype(options, dtype), parse_shard_size(options, shard_size)};

  CheckpointReader checkpoint(from);
  const CarriedFiles carried = find_carried_files(checkpoint.job());
  target.files = carried.files;
  const ExportSummary summary = export_huggingface(
      checkpoint.job().model(), target,
      [&](const Parameter& parameter, std::int64_t begin, std::span<float> out) {
        checkpoint.read(parameter.name, "weight", parameter.shape, begin, out);
      },
      ProgressLine());
  std::printf("%s: %zu tensors, %s as %s in %zu file%s, from step %llu (%s)\n", output.c_str(), summary.tensors,
              format_bytes(summary.bytes).c_str(), dtype.c_str(), summary.files, summary.files == 1 ? "" : "s",
              static_cast<unsigned long long>(checkpoint.index().step()), checkpoint.folder().c_str());
  for (const std::string& remark : carried.remarks) std::printf("  %s\n", remark.c_str());
  return 0;
}

int command_import(const Arguments& arguments) {
  std::string folder;
  bool print_model = false;
  CommandOptions options(
      "import", "HF_FOLDER [options]",
      "Checks that training can start from a Hugging Face folder (config.json, safetensors) and prints what a job\n"
      "file needs for it. Nothing is copied: the job reads the folder when it starts.");
  options.add()("print-model", po::bool_switch(&print_model), "print the model block only, for a job file");
  options.word("HF_FOLDER", folder);
  if (!options.read(arguments)) return 0;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    fail(ErrorKind::data, "{} {}; name a folder that holds config.json and safetensors", folder,
         std::filesystem::exists(folder, ignored) ? "is no folder" : "does not exist");
  }
  const Model model = read_huggingface_config(folder);
  const ParameterTable table(model);
  const HuggingfaceWeights weights(folder, model, table);
  if (!print_model) {
    std::printf("# %s: %zu parameters, %s elements, %s active per token\n", folder.c_str(), table.parameters().size(),
                format_count(static_cast<double>(table.total())).c_str(),
                format_count(static_cast<double>(table.active())).c_str());
    Job job;
    job.set_initial_weights(std::filesystem::absolute(folder).lexically_normal().string());
    std::string line;
    google::protobuf::TextFormat::PrintToString(job, &line);
    std::fputs(line.c_str(), stdout);
  }
  std::fputs(model_block(model).c_str(), stdout);
  return 0;
}

}  // namespace ananke
