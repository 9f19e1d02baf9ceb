#include "runtime/comm/local_rendezvous.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "runtime/comm/exchange_table.h"

namespace ananke {
namespace {

class World final : public LocalWorld {
 public:
  World(int size, std::chrono::milliseconds deadline)
      : size_(size), joined_(static_cast<std::size_t>(size)), table_(size, deadline) {}

  int size() const { return size_; }
  std::unique_ptr<Rendezvous> join(int rank) override;
  void abandon(const std::string& message) override;
  std::vector<std::string> exchange(int rank, const std::string& key, std::span<const int> members, std::string blob);

 private:
  struct Answer {
    std::vector<std::string> blobs;
    ErrorKind kind = ErrorKind::internal;
    std::string error;
  };
  void deliver(std::vector<ExchangeTable::Outcome> outcomes);

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> joined_;
  ExchangeTable table_;
  std::map<std::uint64_t, Answer> answers_;  // by request, until its rank takes it
  std::uint64_t next_request_ = 0;
  std::string abandoned_;
};

class Handle final : public Rendezvous {
 public:
  Handle(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }
  std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob) override {
    return world_->exchange(rank_, key, members, std::move(blob));
  }

 private:
  std::shared_ptr<World> world_;
  int rank_;
};

std::unique_ptr<Rendezvous> World::join(int rank) {
  ANANKE_CHECK(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
  std::lock_guard lock(mutex_);
  ANANKE_CHECK(!joined_[static_cast<std::size_t>(rank)], "rank {} joins a second time", rank);
  joined_[static_cast<std::size_t>(rank)] = true;
  return std::make_unique<Handle>(std::static_pointer_cast<World>(shared_from_this()), rank);
}

void World::abandon(const std::string& message) {
  std::lock_guard lock(mutex_);
  if (abandoned_.empty()) abandoned_ = message.empty() ? "another rank failed" : message;
  changed_.notify_all();
}

void World::deliver(std::vector<ExchangeTable::Outcome> outcomes) {
  for (ExchangeTable::Outcome& outcome : outcomes) {
    for (const auto& ticket : outcome.waiting) {
      answers_[ticket.request] = {outcome.blobs, outcome.kind, outcome.error};
    }
  }
  if (!outcomes.empty()) changed_.notify_all();
}

std::vector<std::string> World::exchange(int rank, const std::string& key, std::span<const int> members,
                                         std::string blob) {
  std::unique_lock lock(mutex_);
  const std::uint64_t request = next_request_++;
  deliver(table_.arrive({rank, request}, key, members, std::move(blob), ExchangeTable::Clock::now()));
  for (auto found = answers_.find(request);; found = answers_.find(request)) {
    if (found != answers_.end()) {
      Answer answer = std::move(found->second);
      answers_.erase(found);
      if (!answer.error.empty()) fail(answer.kind, "{}", answer.error);
      return std::move(answer.blobs);
    }
    if (!abandoned_.empty()) fail(ErrorKind::worker_failed, "exchange '{}' of rank {}: {}", key, rank, abandoned_);
    // Own exchange is open here, so there is a next deadline.
    if (changed_.wait_until(lock, table_.next_deadline().value()) == std::cv_status::timeout) {
      deliver(table_.expire(ExchangeTable::Clock::now()));
    }
  }
}

}  // namespace

std::shared_ptr<LocalWorld> LocalWorld::create(int size, std::chrono::milliseconds deadline) {
  ANANKE_CHECK(size >= 1, "a world of {} ranks", size);
  return std::make_shared<World>(size, deadline);
}

}  // namespace ananke
