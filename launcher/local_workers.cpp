#include "launcher/local_workers.h"

#include <csignal>

#include "launcher/oom_counter.h"
#include "runtime/base/process.h"

namespace ananke {

std::filesystem::path log_of(const std::filesystem::path& run_dir, int rank) {
  return run_dir / "logs" / fmt::format("rank-{}.log", rank);
}

void LocalWorkers::start(const Variables& variables) {
  oom_before_ = count_oom_kills();
  pmix_.emplace(spec_.ranks);
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    ProcessSpec process;
    process.program = spec_.program;
    process.arguments = spec_.arguments;
    process.environment = pmix_->environment(rank);
    process.log = log_of(spec_.run_dir, rank);
    for (const auto& [name, value] : variables) set_variable(process.environment, name, value);
    workers_.emplace_back(process);
  }
}

void LocalWorkers::watch(std::vector<pollfd>& ready) const {
  if (pmix_) ready.push_back({pmix_->descriptor(), POLLIN, 0});
  for (const WorkerProcess& worker : workers_) {
    if (worker.running()) ready.push_back({worker.descriptor(), POLLIN, 0});
  }
}

std::vector<Workers::News> LocalWorkers::take_news() {
  std::vector<News> news;
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    const auto status = workers_[static_cast<std::size_t>(rank)].reap();
    if (!status) continue;
    News one{.kind = News::Kind::ended, .rank = rank, .status = *status, .when = Clock::now()};
    if (status->signal == SIGKILL) {
      const auto oom_now = count_oom_kills();
      one.out_of_memory = oom_before_ && oom_now && *oom_now > *oom_before_;
    }
    news.push_back(std::move(one));
  }
  while (auto abort = pmix_ ? pmix_->take_abort() : std::nullopt) {
    if (abort->rank < 0 || abort->rank >= spec_.ranks) continue;
    news.push_back({.kind = News::Kind::aborted,
                    .rank = abort->rank,
                    .when = Clock::now(),
                    .number = abort->status,
                    .message = abort->message});
  }
  return news;
}

std::string LocalWorkers::host(int) const { return host_name(); }

void LocalWorkers::terminate() {
  for (const WorkerProcess& worker : workers_) worker.signal(SIGTERM);
}

void LocalWorkers::kill() {
  for (const WorkerProcess& worker : workers_) worker.signal(SIGKILL);
}

}  // namespace ananke
