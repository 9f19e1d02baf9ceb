#include "runtime/comm/exchange_table.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/units.h"

namespace ananke {

std::string format_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

ExchangeTable::Outcome ExchangeTable::refuse(Ticket ticket, ErrorKind kind, std::string error) const {
  return {{ticket}, {}, kind, std::move(error)};
}

std::string ExchangeTable::find_conflict(int rank, const Name& name) const {
  const auto& [key, members] = name;
  if (!std::binary_search(members.begin(), members.end(), rank)) {
    return fmt::format("rank {} calls exchange '{}' of {} without being one of them", rank, key, format_ranks(members));
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size_ || (i > 0 && members[i] <= members[i - 1])) {
      return fmt::format("exchange '{}' of rank {}: members must be ascending ranks below {}, got {}", key, rank, size_,
                         fmt::join(members, ", "));
    }
  }
  for (auto other = entries_.lower_bound({key, {}}); other != entries_.end() && other->first.first == key; ++other) {
    if (other->second.closed || other->first.second == members) continue;
    std::vector<int> both;
    std::ranges::set_intersection(members, other->first.second, std::back_inserter(both));
    if (!both.empty()) {
      return fmt::format("exchange '{}': rank {} calls it for {}, others call it for {}", key, rank,
                         format_ranks(members), format_ranks(other->first.second));
    }
  }
  return {};
}

ExchangeTable::Outcome ExchangeTable::close(const Name& name, Entry& entry, ErrorKind kind, std::string error) {
  Outcome outcome{{}, {}, kind, std::move(error)};
  for (std::size_t i = 0; i < entry.arrivals.size(); ++i) {
    if (!entry.arrivals[i].here) continue;
    outcome.waiting.push_back({name.second[i], entry.arrivals[i].request});
    if (outcome.error.empty()) outcome.blobs.push_back(std::move(entry.arrivals[i].blob));
  }
  entry.closed = true;
  entry.error = outcome.error;
  entry.arrivals = {};
  return outcome;
}

std::vector<ExchangeTable::Outcome> ExchangeTable::arrive(Ticket ticket, const std::string& key,
                                                          std::span<const int> members, std::string blob,
                                                          Clock::time_point now, std::optional<Deadline> deadline) {
  Name name{key, {members.begin(), members.end()}};
  if (name.second.empty()) {
    name.second.resize(static_cast<std::size_t>(size_));
    std::iota(name.second.begin(), name.second.end(), 0);
  }
  std::vector<Outcome> outcomes;
  if (auto known = misused_.find(key); known != misused_.end()) {
    return {refuse(ticket, ErrorKind::internal, known->second)};
  }
  if (std::string conflict = find_conflict(ticket.rank, name); !conflict.empty()) {
    // Whoever waits under this key, or comes later, would wait in vain: everyone learns of it now.
    misused_[key] = conflict;
    for (auto other = entries_.lower_bound({key, {}}); other != entries_.end() && other->first.first == key; ++other) {
      if (!other->second.closed) outcomes.push_back(close(other->first, other->second, ErrorKind::internal, conflict));
    }
    outcomes.push_back(refuse(ticket, ErrorKind::internal, std::move(conflict)));
    return outcomes;
  }
  auto [place, is_new] = entries_.try_emplace(std::move(name));
  Entry& entry = place->second;
  const std::vector<int>& ranks = place->first.second;
  if (is_new) {
    entry.arrivals.resize(ranks.size());
    entry.missing = static_cast<int>(ranks.size());
    entry.deadline = deadline.value_or(deadline_);
    entry.due = now + entry.deadline.time;
  }
  if (entry.closed && !entry.error.empty()) return {refuse(ticket, ErrorKind::stalled, entry.error)};
  const auto position = std::lower_bound(ranks.begin(), ranks.end(), ticket.rank) - ranks.begin();
  if (entry.closed || entry.arrivals[static_cast<std::size_t>(position)].here) {
    return {refuse(ticket, ErrorKind::internal,
                   fmt::format("rank {} calls exchange '{}' twice; a key serves once: number it", ticket.rank, key))};
  }
  entry.arrivals[static_cast<std::size_t>(position)] = {true, ticket.request, std::move(blob)};
  if (--entry.missing == 0) outcomes.push_back(close(place->first, entry, ErrorKind::internal, {}));
  return outcomes;
}

std::vector<ExchangeTable::Outcome> ExchangeTable::expire(Clock::time_point now) {
  std::vector<Outcome> outcomes;
  for (auto& [name, entry] : entries_) {
    if (entry.closed || entry.due > now) continue;
    std::vector<int> missing;
    for (std::size_t i = 0; i < entry.arrivals.size(); ++i) {
      if (!entry.arrivals[i].here) missing.push_back(name.second[i]);
    }
    outcomes.push_back(close(
        name, entry, ErrorKind::stalled,
        fmt::format("exchange '{}' of {}: {} did not come within {}; look into the log of the "
                    "missing, or raise the site's {}",
                    name.first, format_ranks(name.second), format_ranks(missing),
                    format_duration(std::chrono::duration<double>(entry.deadline.time).count()), entry.deadline.name)));
  }
  return outcomes;
}

bool ExchangeTable::is_waiting(int rank) const {
  for (const auto& [name, entry] : entries_) {
    const auto place = std::ranges::lower_bound(name.second, rank);
    if (entry.closed || place == name.second.end() || *place != rank) continue;
    if (entry.arrivals[static_cast<std::size_t>(place - name.second.begin())].here) return true;
  }
  return false;
}

std::optional<ExchangeTable::Clock::time_point> ExchangeTable::next_deadline() const {
  std::optional<Clock::time_point> next;
  for (const auto& [name, entry] : entries_) {
    if (!entry.closed && (!next || entry.due < *next)) next = entry.due;
  }
  return next;
}

}  // namespace ananke
