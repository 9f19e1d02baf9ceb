// One rank of a job whose other ranks do not exist: what a plan is made with. Nothing is written, told or exchanged.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/engine/run_control.h"
#include "runtime/roles/observer.h"

namespace ananke {

class Alone : public Rendezvous, public RunControl, public Observer {
 public:
  Alone(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> exchange(const std::string& key, std::span<const int>, std::string) override {
    fail(ErrorKind::internal, "a dry run has no peers to exchange '{}' with", key);
  }
  bool stop_requested() const override { return false; }
  void phase(std::string_view, std::uint64_t) override {}
  void console(const std::string&) override {}
  void on_step(const StepRecord&) override {}
  void on_evaluation(const EvaluationRecord&) override {}
  void on_event(const RunEvent&) override {}

 private:
  int rank_, size_;
};

}  // namespace ananke
