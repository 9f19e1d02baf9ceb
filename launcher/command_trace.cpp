// `ananke trace RUN_DIR`: what a traced step of a run did with its time.
#include <fmt/ranges.h>

#include <charconv>
#include <cstdio>
#include <optional>
#include <set>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/trace_summary.h"
#include "runtime/base/error.h"
#include "runtime/telemetry/trace_file.h"

namespace ananke {
namespace {

namespace po = boost::program_options;
using Path = std::filesystem::path;

constexpr const char* how = "name steps in its job: telemetry { trace_steps: [3] }";

std::set<std::int64_t> ranks_in(const Path& folder) {
  std::set<std::int64_t> ranks;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank_") || !name.ends_with(".json")) continue;
    std::int64_t rank = -1;
    const char* end = name.data() + name.size() - 5;
    if (std::from_chars(name.data() + 5, end, rank).ptr == end && rank >= 0) ranks.insert(rank);
  }
  return ranks;
}

// The file that is meant; without `rank` that of the lowest there is.
Path choose(const Path& given, std::optional<std::int64_t> rank) {
  std::error_code error;
  const auto kind = std::filesystem::status(given, error).type();
  if (kind == std::filesystem::file_type::not_found) fail(ErrorKind::data, "there is no {}", given.string());
  if (kind != std::filesystem::file_type::directory && kind != std::filesystem::file_type::regular) {
    fail(ErrorKind::data, "{} is neither a run's folder nor a file{}", given.string(),
         error ? ": " + error.message() : std::string());
  }
  if (kind != std::filesystem::file_type::directory) {
    if (rank)
      fail(ErrorKind::usage, "trace: --rank is for a run's folder, but {} is a file: of one rank", given.string());
    return given;
  }
  const Path folder = given.filename() == "trace" ? given : trace_folder(given);
  if (!std::filesystem::is_directory(folder)) {
    fail(ErrorKind::data, "{} has no trace: there is no folder {}; {}", given.string(), folder.string(), how);
  }
  const std::set<std::int64_t> ranks = ranks_in(folder);
  if (ranks.empty())
    fail(ErrorKind::data, "{} holds no rank_N.json: no traced step is done yet; {}", folder.string(), how);
  const std::int64_t wanted = rank.value_or(*ranks.begin());
  if (!ranks.contains(wanted)) {
    fail(ErrorKind::data, "{} has no trace of rank {}; it has those of {}", folder.string(), wanted,
         fmt::join(ranks, ", "));
  }
  return folder / fmt::format("rank_{}.json", wanted);
}

}  // namespace

int command_trace(const Arguments& arguments) {
  std::string given;
  std::int64_t rank = 0, step = 0, top = 15;
  CommandOptions options("trace", "RUN_DIR|FILE [options]",
                         "What a traced step did with its time: how busy each stream was, where it stood still and\n"
                         "whether another one worked meanwhile, and the operators, collectives, copies and kernels\n"
                         "with most time. Steps are traced where a job says telemetry { trace_steps: [3, 4] }; the\n"
                         "files, RUN_DIR/trace/rank_N.json, open in ui.perfetto.dev.");
  options.add()("rank", po::value(&rank)->value_name("N"), "of this rank; else of the lowest")(
      "step", po::value(&step)->value_name("N"), "this step; else the last that was traced to its end")(
      "top", po::value(&top)->value_name("N")->default_value(top), "so many lines of what takes most time");
  options.word("RUN_OR_FILE", given);
  if (!options.read(arguments)) return 0;
  for (const auto& [option, value] : {std::pair("rank", rank), {"step", step}, {"top", top}}) {
    const int least = option == std::string_view("step") && options.given("step") ? 1 : 0;
    if (value < least) options.misused(fmt::format("--{} {} is no number of at least {}", option, value, least));
  }
  const Path file = choose(given, options.given("rank") ? std::optional(rank) : std::nullopt);
  const TraceRecords records =
      read_trace(file, options.given("step") ? std::optional(static_cast<std::uint64_t>(step)) : std::nullopt);
  std::fputs(trace_text(records, static_cast<std::size_t>(top)).c_str(), stdout);
  return 0;
}

}  // namespace ananke
