// Who has come to which exchange: the bookkeeping behind every Rendezvous. It has no threads, locks or clock of its
// own; the owner brings arrivals and the time, and hands out what comes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {

class ExchangeTable {
 public:
  using Clock = std::chrono::steady_clock;

  struct Ticket {
    int rank = 0;
    std::uint64_t request = 0;  // chosen by the owner, returned unchanged
  };
  // What every ticket in `waiting` gets: all blobs in the members' order, or an error.
  struct Outcome {
    std::vector<Ticket> waiting;
    std::vector<std::string> blobs;
    ErrorKind kind = ErrorKind::internal;
    std::string error;  // empty: it succeeded
  };

  // `deadline` counts from the first arrival at an exchange.
  ExchangeTable(int size, std::chrono::milliseconds deadline)
      : size_(size), deadline_{deadline, "deadlines.exchange"} {}

  // The outcomes that this arrival causes: none while others are missing. Misuse (not a member, ranks out of order, a
  // key used twice, members that differ between ranks) is an outcome of its own, at once. The first arrival may bring
  // another deadline, and the name of what sets it, for messages.
  struct Deadline {
    std::chrono::milliseconds time;
    const char* name;
  };
  std::vector<Outcome> arrive(Ticket ticket, const std::string& key, std::span<const int> members, std::string blob,
                              Clock::time_point now, std::optional<Deadline> deadline = {});
  // Exchanges whose deadline has passed; the error names who did not come. Late comers get the same error.
  std::vector<Outcome> expire(Clock::time_point now);
  std::optional<Clock::time_point> next_deadline() const;
  // Whether the rank waits for others in some exchange.
  bool is_waiting(int rank) const;

 private:
  struct Arrival {
    bool here = false;
    std::uint64_t request = 0;
    std::string blob;
  };
  struct Entry {
    std::vector<Arrival> arrivals;  // by position among the members
    int missing = 0;
    Clock::time_point due;
    Deadline deadline{};
    bool closed = false;
    std::string error;  // of a closed one
  };
  using Name = std::pair<std::string, std::vector<int>>;  // disjoint groups may use one key

  Outcome refuse(Ticket ticket, ErrorKind kind, std::string error) const;
  std::string find_conflict(int rank, const Name& name) const;
  static Outcome close(const Name& name, Entry& entry, ErrorKind kind, std::string error);

  int size_;
  Deadline deadline_;
  std::map<Name, Entry> entries_;
  std::map<std::string, std::string> misused_;  // key -> what was wrong with its calls
};

// "rank 3", "ranks 0-2, 5": for messages.
std::string format_ranks(std::span<const int> ranks);

}  // namespace ananke
