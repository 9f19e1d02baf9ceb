// Workers as the tasks of one srun, on the nodes of an allocation. Each is started by a supervisor (`ananke
// supervise`), which tells how it ended; should srun or a node end before that, the rank is lost.
#pragma once

#include <cstddef>
#include <deque>

#include "launcher/launch.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/task_report.h"
#include "launcher/workers.h"

namespace ananke {

struct SrunSpec {
  StepLayout layout;
  std::string mpi;                 // of --mpi
  std::vector<std::string> flags;  // the site's
  std::string control_host;        // by which workers reach this node
  bool one_node = false;           // all workers are on this node
  std::chrono::milliseconds command_deadline{30'000};
};

// The whole command, of which the words after srun's own are the supervisor's.
std::vector<std::string> srun_words(const SrunSpec& srun, const LaunchSpec& spec);

class SrunWorkers : public Workers {
 public:
  SrunWorkers(const LaunchSpec& spec, SrunSpec srun);
  // Ends what is left of the step.
  ~SrunWorkers() override;

  std::string listen_address() const override { return srun_.one_node ? "127.0.0.1" : "0.0.0.0"; }
  std::string control_host() const override { return srun_.control_host; }
  void start(const Variables& variables) override;
  void watch(std::vector<pollfd>& ready) const override;
  std::vector<News> take_news() override;
  bool is_running(int rank) const override { return !at(rank).told; }
  int process(int rank) const override { return at(rank).report.process; }
  std::string host(int rank) const override;
  std::string state(int) const override { return ""; }
  // Workers hear it from the control channel; who does not will be killed. srun has no weaker word than that.
  void terminate() override {}
  void kill() override;

 private:
  struct Task {
    TaskReport report;
    bool told = false;  // its end
  };
  const Task& at(int rank) const { return tasks_[static_cast<std::size_t>(rank)]; }
  void read(Descriptor& from, std::string& rest, void (SrunWorkers::*take)(const std::string&));
  void take_output_line(const std::string& line);
  void take_error_line(const std::string& line);
  void lose_the_rest();
  std::string end_text() const;

  const LaunchSpec& spec_;
  const SrunSpec srun_;
  std::vector<Task> tasks_;
  std::optional<WorkerProcess> process_;
  std::optional<ExitStatus> end_;
  Clock::time_point ended_{};
  Descriptor output_, errors_;
  std::string output_rest_, errors_rest_;
  std::deque<std::string> said_;  // srun's last lines
  std::vector<News> news_;
  std::string step_;
  bool killed_ = false;
};

}  // namespace ananke
