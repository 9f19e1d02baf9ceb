#include "plugins/backend_host/shared_transport.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t most_ranks = 64;
constexpr std::chrono::milliseconds look_around{50};  // how often a wait looks for peers that ended

// The file of each rank: this board (in use: the first rank's), then two outboxes, used in turn. When a meeting has
// taken place everyone has read what was shown at the meeting before, so that outbox is free again.
constexpr off_t outbox_offset(unsigned turn) { return off_t{turn + 1} << 40; }

struct Shown {
  std::uint64_t offset, bytes;
};

struct Entry {
  std::atomic<std::uint32_t> meetings;  // this rank has come to
  std::uint64_t outbox_bytes;
  Shown parts[most_ranks];  // by receiver
};

enum class Why : std::uint32_t { none, closed, ended, late, mismatch };

struct Board {
  std::atomic<std::uint32_t> meetings;  // that all ranks came to; waited for
  std::atomic<std::uint32_t> here;
  std::atomic<std::uint32_t> failure;  // Why, and the rank within the group it is about
  Entry entries[2][most_ranks];
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

std::uint32_t pack(Why why, int rank) {
  return static_cast<std::uint32_t>(why) << 16 | static_cast<std::uint32_t>(rank);
}

void wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::milliseconds limit) {
  const timespec timeout{limit.count() / 1000, limit.count() % 1000 * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

class SharedTransport final : public Transport {
 public:
  struct Peer {
    FileDescriptor file, process;
    pid_t pid = 0;
    std::array<Mapping, 2> outboxes;
  };

  SharedTransport(std::vector<int> ranks, int rank, std::chrono::milliseconds deadline, std::vector<Peer> peers,
                  std::shared_ptr<std::atomic<std::uint64_t>> taken)
      : ranks_(std::move(ranks)), rank_(rank), deadline_(deadline), peers_(std::move(peers)), taken_(std::move(taken)) {
    board_memory_.grow(peers_[0].file, 0, sizeof(Board), true);
    board_ = reinterpret_cast<Board*>(board_memory_.data());
  }
  ~SharedTransport() override { leave(); }

  void exchange(std::span<const Part> sends, std::span<Part> receives) override;
  void finish() override {}
  void abort() noexcept override { give_up(Why::closed, rank_); }
  void leave() noexcept override { abort(); }  // what was shown stays readable

 private:
  void show(std::span<const Part> sends);
  void meet();
  void look_for_lost_peers();
  void receive(int peer, Part& to);
  void give_up(Why why, int rank) noexcept;
  [[noreturn]] void stop();
  int size() const { return static_cast<int>(ranks_.size()); }
  Entry& entry(int rank) { return board_->entries[turn_][rank]; }

  const std::vector<int> ranks_;
  const int rank_;
  const std::chrono::milliseconds deadline_;
  std::vector<Peer> peers_;  // own included
  const std::shared_ptr<std::atomic<std::uint64_t>> taken_;
  Mapping board_memory_;
  Board* board_ = nullptr;
  std::uint32_t meetings_ = 0;
  unsigned turn_ = 0;
};

void SharedTransport::exchange(std::span<const Part> sends, std::span<Part> receives) {
  if (board_->failure.load() != 0) stop();
  turn_ = meetings_ % 2;
  show(sends);
  meet();
  for (int step = 1; step < size(); ++step) {  // each begins with another peer
    const int peer = (rank_ + step) % size();
    receive(peer, receives[static_cast<std::size_t>(peer)]);
  }
}

// Copies into the own outbox; what goes to several ranks stands there once.
void SharedTransport::show(std::span<const Part> sends) {
  Entry& mine = entry(rank_);
  std::uint64_t end = 0;
  for (std::size_t p = 0; p < sends.size(); ++p) {
    const Part& part = sends[p];
    mine.parts[p] = {end, part.bytes};
    if (static_cast<int>(p) == rank_) continue;
    std::size_t same = 0;
    while (same < p &&
           (static_cast<int>(same) == rank_ || sends[same].data != part.data || sends[same].bytes != part.bytes))
      ++same;
    if (same < p) {
      mine.parts[p] = mine.parts[same];
    } else {
      end += (part.bytes + 255) / 256 * 256;
    }
  }
  Peer& me = peers_[static_cast<std::size_t>(rank_)];
  Mapping& outbox = me.outboxes[turn_];
  const std::size_t before = outbox.bytes();
  outbox.grow(me.file, outbox_offset(turn_), end, true);
  if (taken_) taken_->fetch_add(outbox.bytes() - before, std::memory_order_relaxed);
  mine.outbox_bytes = outbox.bytes();
  std::uint64_t copied = 0;
  for (std::size_t p = 0; p < sends.size(); ++p) {
    if (static_cast<int>(p) == rank_ || mine.parts[p].offset < copied || sends[p].bytes == 0) continue;
    std::memcpy(outbox.data() + mine.parts[p].offset, sends[p].data, sends[p].bytes);
    copied = mine.parts[p].offset + sends[p].bytes;
  }
}

// Returns when all ranks have come.
void SharedTransport::meet() {
  entry(rank_).meetings.store(meetings_ + 1);
  if (board_->here.fetch_add(1) + 1 == ranks_.size()) {
    board_->here.store(0);
    board_->meetings.store(meetings_ + 1);
    wake_all(board_->meetings);
  } else {
    const auto due = Clock::now() + deadline_;
    while (board_->meetings.load() == meetings_) {
      if (board_->failure.load() != 0) stop();
      wait_for_change(board_->meetings, meetings_, std::min(look_around, deadline_));
      if (board_->meetings.load() != meetings_) break;
      look_for_lost_peers();
      if (Clock::now() < due) continue;
      for (int p = 0; p < size(); ++p) {
        if (entry(p).meetings.load() != meetings_ + 1) give_up(Why::late, p);
      }
    }
  }
  ++meetings_;
}

void SharedTransport::look_for_lost_peers() {
  std::array<pollfd, most_ranks> processes;
  for (std::size_t p = 0; p < peers_.size(); ++p) processes[p] = {peers_[p].process.get(), POLLIN, 0};
  if (poll(processes.data(), peers_.size(), 0) <= 0) return;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (processes[p].revents) give_up(Why::ended, static_cast<int>(p));
  }
}

void SharedTransport::receive(int peer, Part& to) {
  const Entry& from = entry(peer);
  const Shown shown = from.parts[rank_];
  if (shown.bytes != to.bytes) {
    give_up(Why::mismatch, peer);
    fail(ErrorKind::internal, "rank {} sends {} bytes where rank {} expects {}: the ranks made different calls",
         ranks_[static_cast<std::size_t>(peer)], shown.bytes, ranks_[static_cast<std::size_t>(rank_)], to.bytes);
  }
  if (to.bytes == 0) return;
  Peer& sender = peers_[static_cast<std::size_t>(peer)];
  Mapping& outbox = sender.outboxes[turn_];
  outbox.grow(sender.file, outbox_offset(turn_), from.outbox_bytes, false);
  std::byte* data = outbox.data() + shown.offset;
  if (to.data) {
    std::memcpy(to.data, data, to.bytes);
  } else {
    to.data = data;
  }
}

// The first reason counts, for all.
void SharedTransport::give_up(Why why, int rank) noexcept {
  std::uint32_t none = 0;
  board_->failure.compare_exchange_strong(none, pack(why, rank));
  wake_all(board_->meetings);
}

void SharedTransport::stop() {
  const std::uint32_t failure = board_->failure.load();
  const auto peer = static_cast<std::size_t>(failure & 0xffff);
  const int rank = ranks_[peer];
  switch (static_cast<Why>(failure >> 16)) {
    case Why::ended: fail(ErrorKind::worker_failed, "rank {} (process {}) has ended", rank, peers_[peer].pid);
    case Why::late:
      fail(ErrorKind::stalled, "rank {} did not come within {}", rank,
           format_duration(std::chrono::duration<double>(deadline_).count()));
    case Why::mismatch: fail(ErrorKind::internal, "what rank {} sends is not what others expect", rank);
    default: fail(ErrorKind::worker_failed, "rank {} has closed it", rank);
  }
}

}  // namespace

SharedGroup::SharedGroup(std::vector<int> ranks, int rank, std::chrono::milliseconds deadline,
                         std::shared_ptr<std::atomic<std::uint64_t>> taken)
    : ranks_(std::move(ranks)), rank_(rank), deadline_(deadline), taken_(std::move(taken)), file_(make_shared_file()) {}

SharedGroup::~SharedGroup() = default;

std::string SharedGroup::address() const { return shared_address(file_); }

std::unique_ptr<Transport> SharedGroup::join(const std::vector<std::string>& addresses) {
  if (ranks_.size() > most_ranks) {
    fail(ErrorKind::resource, "at most {} ranks share memory, not {}", most_ranks, ranks_.size());
  }
  std::vector<SharedTransport::Peer> peers(addresses.size());
  for (std::size_t p = 0; p < addresses.size(); ++p) {
    peers[p].file = open_shared(addresses[p]);
    peers[p].process = watch_process(addresses[p]);
    peers[p].pid = process_of(addresses[p]);
  }
  return std::make_unique<SharedTransport>(ranks_, rank_, deadline_, std::move(peers), taken_);
}

}  // namespace ananke
