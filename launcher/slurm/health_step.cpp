#include "launcher/slurm/health_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include "launcher/slurm/command.h"
#include "launcher/slurm/probe.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view mark = "ananke-health";
constexpr std::size_t piece = 720;                 // of base64 in a line: Slurm cuts lines above 1,024 bytes
constexpr std::size_t most_output = 512ULL << 20;  // some kilobytes a node
constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(const std::string& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? digits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

// Nothing where it is none.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    std::size_t known = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      const char* found = text[i + j] == '=' ? nullptr : std::find(digits, digits + 64, text[i + j]);
      if (found == digits + 64 || (found && known != j)) return std::nullopt;
      known += found ? 1 : 0;
      group = group << 6 | (found ? static_cast<std::uint32_t>(found - digits) : 0U);
    }
    if (known < 2 || (known < 4 && i + 4 < text.size())) return std::nullopt;
    for (std::size_t j = 0; j + 1 < known; ++j) bytes += static_cast<char>(group >> (16 - 8 * j) & 255);
  }
  return bytes;
}

// What was heard of one node.
struct Heard {
  std::map<std::size_t, std::string> pieces;
  std::size_t count = 0;
  bool damaged = false;

  void add(const std::string& place, const std::string& text) {
    std::size_t number = 0, of = 0;
    if (std::sscanf(place.c_str(), "%zu/%zu", &number, &of) != 2 || number < 1 || number > of ||
        (count != 0 && count != of)) {
      damaged = true;
      return;
    }
    count = of;
    const auto [there, is_new] = pieces.emplace(number, text);
    damaged = damaged || (!is_new && there->second != text);
  }
  std::optional<NodeHealth> health() const {
    if (damaged || pieces.size() != count) return std::nullopt;
    std::string text;
    for (const auto& [number, one] : pieces) text += one;
    const std::optional<std::string> bytes = from_base64(text);
    NodeHealth node;
    if (!bytes || !node.ParseFromString(*bytes) || !node.has_begin()) return std::nullopt;
    return node;
  }
};

std::string why_silent(const std::vector<std::string>& words, const CommandOutput& said, milliseconds deadline) {
  if (said.late || said.too_much) return "it did not report: " + describe_failure({words[0]}, said, deadline);
  const std::string lines = last_lines_of(said.errors);
  return fmt::format("it did not report: srun ended with exit code {}{}{}", said.code, lines.empty() ? "" : ": ",
                     lines);
}

}  // namespace

std::vector<std::string> to_health_lines(const NodeHealth& node) {
  const std::string text = to_base64(node.SerializeAsString());
  const std::size_t count = (text.size() + piece - 1) / piece;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < count; ++i) {
    lines.push_back(fmt::format("{} {} {}/{} {}", mark, node.node(), i + 1, count, text.substr(i * piece, piece)));
  }
  return lines;
}

std::vector<NodeAnswer> parse_health_lines(const std::vector<std::string>& nodes, const std::string& output,
                                           const std::string& why_not) {
  std::map<std::string, Heard> heard;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, node, place, text;
    if (words >> first >> node >> place >> text && first == mark) heard[node].add(place, text);
  }
  std::vector<NodeAnswer> answers;
  for (const std::string& node : nodes) {
    NodeAnswer& answer = answers.emplace_back();
    answer.node = node;
    const auto found = heard.find(node);
    if (found != heard.end()) answer.health = found->second.health();
    if (!answer.health) {
      answer.why_not = found == heard.end() ? why_not : "its report is not whole, or damaged; " + why_not;
    }
  }
  return answers;
}

std::vector<std::string> health_srun_words(const std::vector<std::string>& nodes, const Site& profile,
                                           const std::string& program, const std::string& site, HealthLevel level) {
  std::string list;
  for (const std::string& node : nodes) list += (list.empty() ? "" : ",") + node;
  std::vector<std::string> words{"srun"};
  words.insert(words.end(), profile.slurm().srun_flag().begin(), profile.slurm().srun_flag().end());
  const std::vector<std::string> own{"--job-name=ananke-health",
                                     fmt::format("--nodes={}", nodes.size()),
                                     "--nodelist=" + list,
                                     fmt::format("--ntasks={}", nodes.size()),
                                     "--ntasks-per-node=1",
                                     "--cpus-per-task=1",
                                     "--mpi=none",
                                     "--export=ALL",
                                     "--input=none",
                                     "--overlap",  // other steps of the job may have all CPUs
                                     "--no-kill",  // the loss of a node is what is to be found out
                                     "--kill-on-bad-exit=0",
                                     "--wait=0",
                                     program,
                                     "health-node",
                                     "--site",
                                     site,
                                     "--level",
                                     HealthLevel_Name(level)};
  words.insert(words.end(), own.begin(), own.end());
  return words;
}

HealthStep run_health_step(const std::vector<std::string>& nodes, const Site& profile, const std::string& site,
                           HealthLevel level) {
  const milliseconds command = parse_duration(profile.slurm().command_deadline());
  const SiteHealth& health = profile.health();
  const milliseconds deadline = parse_duration(level == QUICK ? health.quick_deadline() : health.full_deadline()) +
                                parse_duration(health.start_deadline());
  HealthStep step;
  const LiveNodes there = find_live_nodes(nodes, std::min(command, milliseconds(5'000)));
  if (!there.problem.empty()) step.notes.push_back("UNKNOWN which nodes are there: " + there.problem);
  std::vector<NodeAnswer> heard;
  if (!there.live.empty()) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const auto words = health_srun_words(there.live, profile, program, site, level);
    step.asked.begin = since_1970();
    const CommandOutput said = run_command(words, deadline, {}, most_output);
    step.asked.end = since_1970();
    heard = parse_health_lines(there.live, said.output, why_silent(words, said, deadline));
  }
  for (const std::string& node : nodes) {
    const auto answer = std::ranges::find(heard, node, &NodeAnswer::node);
    const auto gone = std::ranges::find(there.gone, node, [](const auto& one) { return one.first; });
    if (answer != heard.end()) {
      step.answers.push_back(*answer);
    } else {
      const std::string state = gone == there.gone.end() ? "not there" : gone->second;
      step.answers.push_back({.node = node, .why_not = fmt::format("Slurm says that it is {}", state)});
    }
  }
  return step;
}

}  // namespace ananke
