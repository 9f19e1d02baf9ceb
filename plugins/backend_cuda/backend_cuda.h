// The backend for NVIDIA GPUs.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/backend_cuda/backend_cuda.pb.h"
#include "plugins/backend_cuda/block_memory.h"
#include "plugins/backend_cuda/collective_watch.h"
#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/device_choice.h"
#include "plugins/backend_cuda/device_trace.h"
#include "plugins/backend_cuda/memory_plan.h"
#include "runtime/roles/backend.h"

namespace ananke {

namespace cuda {
class CudaOperators;
}

class BackendCuda final : public Backend {
 public:
  BackendCuda(const RoleContext& context, const plugin::BackendCuda& config);
  ~BackendCuda() override;

  bool computes_in(DType type) const override { return type == DType::f32 || type == DType::bf16; }
  bool stores_in(DType type) const override { return type == DType::f32 || type == DType::bf16; }
  std::string determinism() const override;
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override;
  std::vector<PlanLine> in_use() override;
  std::optional<DeviceRoom> room() override;
  Device& device() override;
  // In a dry run for sizes only: no device is touched, so there may be none, nor a driver.
  const OperatorSet& operators() override;
  void trace(Trace* trace) override;
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override;

 private:
  cuda::CudaDevice& open();
  cuda::PlannedDevice planned_device() const;
  std::string number(const std::string& name, std::span<const int> ranks);

  const plugin::BackendCuda config_;
  const cuda::RankPlace place_;
  const MeshShape mesh_;
  const DType widest_;  // of activations
  const bool deterministic_, dry_;
  const std::chrono::milliseconds exchange_deadline_, step_deadline_;
  std::mutex mutex_;
  std::map<std::string, int> made_;  // communicators by name and members, for keys that serve once
  int nccl_ = 0;                     // version of the library, asked for when the device is opened
  cuda::CollectiveWatch watch_;
  // In this order: operators keep pieces of the arenas, and work on the device's streams uses them.
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<cuda::DeviceTrace> trace_;  // null until a step is traced
  struct HostArenas;                          // stand in for the device's in a dry run
  std::unique_ptr<HostArenas> host_arenas_;
  std::unique_ptr<cuda::CudaOperators> operators_;
};

}  // namespace ananke
