// Workers as this process's children, under an embedded PMIx server.
#pragma once

#include <optional>

#include "launcher/launch.h"
#include "launcher/pmix_server.h"
#include "launcher/workers.h"

namespace ananke {

class LocalWorkers : public Workers {
 public:
  explicit LocalWorkers(const LaunchSpec& spec) : spec_(spec) {}

  std::string listen_address() const override { return "127.0.0.1"; }
  std::string control_host() const override { return "127.0.0.1"; }
  void start(const Variables& variables) override;
  void watch(std::vector<pollfd>& ready) const override;
  std::vector<News> take_news() override;
  // Without the PMIx server a killed launcher leaves no files.
  void all_joined() override { pmix_.reset(); }
  bool is_running(int rank) const override { return at(rank).running(); }
  int process(int rank) const override { return at(rank).pid(); }
  std::string host(int rank) const override;
  std::string state(int rank) const override { return at(rank).state(); }
  void terminate() override;
  void kill() override;

 private:
  const WorkerProcess& at(int rank) const { return workers_[static_cast<std::size_t>(rank)]; }

  const LaunchSpec& spec_;
  std::optional<PmixServer> pmix_;
  std::vector<WorkerProcess> workers_;
  std::optional<std::uint64_t> oom_before_;
};

}  // namespace ananke
