#include "plugins/backend_host/thread_transport.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"

namespace ananke {

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~ThreadTransport() override { leave(); }

  void exchange(std::span<const Part> sends, std::span<Part> receives) override {
    group_->show(rank_, sends);
    group_->meet(rank_, true);
    for (int step = 1; step < static_cast<int>(receives.size()); ++step) {  // each begins with another peer
      const int peer = (rank_ + step) % static_cast<int>(receives.size());
      receive(peer, receives[static_cast<std::size_t>(peer)]);
    }
  }

  void finish() override {
    group_->stop_reading();
    group_->meet(rank_, false);
  }

  void abort() noexcept override {
    group_->give_up(ErrorKind::worker_failed, fmt::format("rank {} has closed it", world_rank()));
  }
  void leave() noexcept override { abort(); }  // nobody that passed a meeting looks at the failure

 private:
  int world_rank() const { return group_->ranks_[static_cast<std::size_t>(rank_)]; }

  void receive(int peer, Part& to) {
    const Part& from = group_->shown(peer, rank_);
    if (from.bytes != to.bytes) {
      auto reason = fmt::format("rank {} sends {} bytes where rank {} expects {}: the ranks made different calls",
                                group_->ranks_[static_cast<std::size_t>(peer)], from.bytes, world_rank(), to.bytes);
      group_->give_up(ErrorKind::internal, std::move(reason));
      group_->stop_reading();
      group_->leave();
    }
    if (!to.data) {
      to.data = from.data;
    } else if (to.bytes) {
      std::memcpy(to.data, from.data, to.bytes);
    }
  }

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
};

ThreadGroup::ThreadGroup(std::vector<int> ranks, std::chrono::milliseconds deadline)
    : ranks_(std::move(ranks)),
      deadline_(deadline),
      shown_(ranks_.size()),
      here_(ranks_.size()),
      missing_(static_cast<int>(ranks_.size())) {}

ThreadGroup* ThreadGroup::create(std::vector<int> ranks, std::chrono::milliseconds deadline) {
  std::shared_ptr<ThreadGroup> group(new ThreadGroup(std::move(ranks), deadline));
  group->seats_.assign(group->ranks_.size(), group);
  return group.get();
}

void ThreadGroup::discard() {
  auto seats = std::move(seats_);  // with the last of them goes the group
}

std::unique_ptr<Transport> ThreadGroup::take_seat(int rank) {
  auto seat = std::move(seats_[static_cast<std::size_t>(rank)]);
  ANANKE_CHECK(seat, "rank {} takes its seat twice", rank);
  return std::make_unique<ThreadTransport>(std::move(seat), rank);
}

void ThreadGroup::show(int rank, std::span<const Part> sends) {
  shown_[static_cast<std::size_t>(rank)].assign(sends.begin(), sends.end());
}

const Part& ThreadGroup::shown(int from, int to) const {
  return shown_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

// Returns when all ranks have come.
void ThreadGroup::meet(int rank, bool reading_follows) {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = meetings_;
  if (failure_.empty()) {
    here_[static_cast<std::size_t>(rank)] = true;
    if (--missing_ == 0) {
      missing_ = static_cast<int>(ranks_.size());
      std::fill(here_.begin(), here_.end(), false);
      if (reading_follows) reading_ = missing_;
      ++meetings_;
      changed_.notify_all();
      return;
    }
    const auto over = [&] { return meetings_ != mine || !failure_.empty(); };
    if (!changed_.wait_for(lock, deadline_, over)) {
      failure_kind_ = ErrorKind::stalled;
      failure_ = fmt::format("{} did not come within {}", format_ranks(late()),
                             format_duration(std::chrono::duration<double>(deadline_).count()));
      changed_.notify_all();
    }
  }
  if (meetings_ != mine) return;
  lock.unlock();
  leave();
}

std::vector<int> ThreadGroup::late() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!here_[r]) ranks.push_back(ranks_[r]);
  }
  return ranks;
}

void ThreadGroup::stop_reading() {
  std::lock_guard lock(mutex_);
  if (--reading_ == 0 && !failure_.empty()) changed_.notify_all();
}

void ThreadGroup::give_up(ErrorKind kind, std::string reason) noexcept {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    failure_kind_ = kind;
    failure_ = std::move(reason);
  }
  changed_.notify_all();
}

// Not before nobody reads any more: the caller will free what it showed.
void ThreadGroup::leave() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reading_ == 0; });
  fail(failure_kind_, "{}", failure_);
}

}  // namespace ananke
