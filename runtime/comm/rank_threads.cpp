#include "runtime/comm/rank_threads.h"

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/local_rendezvous.h"

namespace ananke {
namespace {

// Keeps the error that explains the others.
class FirstCause {
 public:
  void add(std::exception_ptr error, bool collateral) {
    std::lock_guard lock(mutex_);
    if (cause_ && (collateral || !collateral_)) return;
    cause_ = std::move(error);
    collateral_ = collateral;
  }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_;
  bool collateral_ = false;
};

}  // namespace

void run_rank_threads(int ranks, std::chrono::milliseconds deadline,
                      const std::function<void(int rank, Rendezvous& rendezvous)>& work) {
  const std::shared_ptr<LocalWorld> world = LocalWorld::create(ranks, deadline);
  FirstCause cause;
  std::vector<std::thread> threads;
  const auto run_one = [&](int rank) {
    try {
      const std::unique_ptr<Rendezvous> mine = world->join(rank);
      work(rank, *mine);
    } catch (const Error& error) {
      const bool collateral = error.kind() == ErrorKind::worker_failed || error.kind() == ErrorKind::stalled;
      cause.add(std::current_exception(), collateral);
      world->abandon(fmt::format("rank {} failed: {}", rank, error.what()));
    } catch (...) {
      cause.add(std::current_exception(), false);
      world->abandon(fmt::format("rank {} failed", rank));
    }
  };
  try {
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_one, rank);
  } catch (const std::system_error& error) {  // those that run wait for the missing ones
    const std::string text =
        fmt::format("cannot start rank {} of {} as a thread: {}; use fewer ranks", threads.size(), ranks, error.what());
    cause.add(std::make_exception_ptr(Error(ErrorKind::resource, text)), false);
    world->abandon(text);
  }
  for (std::thread& thread : threads) thread.join();
  cause.rethrow();
}

}  // namespace ananke
