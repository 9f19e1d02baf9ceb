// Built-in of the role "activations": block inputs stay in device memory.
#pragma once

#include "runtime/roles/activations.h"

namespace ananke {

class ResidentActivations : public Activations {
 public:
  std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const override;
  void start(Device& device, int blocks, int microbatches, std::size_t bytes) override;
  void* place(int block, int microbatch) override;
  void keep(int block, int microbatch) override;
  void* take(int block, int microbatch) override;
  void forget(int block, int microbatch) override;

 private:
  Buffer memory_;
  int microbatches_ = 0;
  std::size_t stride_ = 0;
};

}  // namespace ananke
