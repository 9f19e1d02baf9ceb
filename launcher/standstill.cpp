#include "launcher/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>

#include "runtime/comm/exchange_table.h"

namespace ananke {
namespace {

std::string place_of(const WorkerStatus& worker) {
  std::string text = worker.phase == "step" ? "" : fmt::format("phase '{}'", worker.phase);
  if (worker.step > 0) text += fmt::format("{}step {}", text.empty() ? "" : ", ", worker.step);
  const bool in_schedule = worker.phase == "step" || worker.phase == "evaluation";
  if (in_schedule && !worker.item.empty()) text += ", " + worker.item;
  if (!worker.activity.empty()) text += (worker.waits ? ", waiting in " : ", inside ") + worker.activity;
  return text;
}

}  // namespace

std::vector<std::string> where_ranks_are(const std::vector<WorkerStatus>& workers, int left_out, std::size_t most) {
  // Behind first; of those at one place the ones that do not merely wait.
  using Order = std::tuple<std::uint64_t, std::uint64_t, bool, std::string>;
  std::map<Order, std::vector<int>> alike;
  for (int rank = 0; rank < static_cast<int>(workers.size()); ++rank) {
    const WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
    if (rank == left_out || worker.finished) continue;
    if (!worker.joined) {
      alike[{0, 0, false, "not joined"}].push_back(rank);
      continue;
    }
    alike[{worker.step, worker.place, worker.waits, place_of(worker)}].push_back(rank);
  }
  std::vector<std::string> lines;
  std::size_t rest = 0;
  for (const auto& [order, ranks] : alike) {
    if (lines.size() + 1 >= most && alike.size() > most) {
      rest += ranks.size();
      continue;
    }
    lines.push_back(fmt::format("{}: {}", format_ranks(ranks), std::get<3>(order)));
  }
  if (rest > 0) lines.push_back(fmt::format("{} more ranks, each elsewhere", rest));
  return lines;
}

std::string indented(const std::string& text, const std::string& indent, std::size_t most) {
  std::istringstream lines(text);
  std::string result;
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    if (count < most) result += (result.empty() ? "" : "\n") + indent + line;
  }
  if (count > most) result += fmt::format("\n{}... {} more lines", indent, count - most);
  return result;
}

}  // namespace ananke
