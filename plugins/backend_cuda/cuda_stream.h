// Streams and events of the CUDA backend.
//
// CUDA's current device belongs to the host thread, and ranks may be threads of one process: whatever takes a stream
// apart by raw() has its device current from then on. After a failure (failure.h) every wait for a stream throws it; an
// event that its stream never reaches counts as reached some time later, so that nobody hangs.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>

#include "plugins/backend_cuda/busy_clock.h"
#include "runtime/device/stream.h"

namespace ananke::cuda {

class Failure;

class CudaStream final : public Stream {
 public:
  // Of device `device`. `priority` as cudaStreamCreateWithPriority takes it: the smaller the sooner its blocks run. It
  // never waits for the legacy default stream.
  CudaStream(std::string name, int device, int priority, std::shared_ptr<const Failure> failure);
  ~CudaStream() override;  // waits for its work, or for the end of the wait after a failure
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;

  cudaStream_t raw() const;  // makes the stream's device current
  int device() const noexcept { return device_; }
  const std::string& name() const noexcept { return name_; }
  // From now on busy_seconds() tells how long it has worked, its waits left out; each wait then costs two more events.
  void keep_time() { clock_ = std::make_unique<BusyClock>(); }
  // Waits for the stream. Nothing without keep_time() and after a failure.
  std::optional<double> busy_seconds();
  // The stream of this backend that `stream` is; Error(internal) when it belongs to another backend.
  static CudaStream& of(Stream& stream);

 private:
  const std::string name_;
  const int device_;
  const std::shared_ptr<const Failure> failure_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<BusyClock> clock_;
};

class CudaEvent final : public Event {
 public:
  // `timed`: keeps when it was reached.
  CudaEvent(int device, std::shared_ptr<const Failure> failure, bool timed = false);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool reached() const override;
  void synchronize() const override;
  std::optional<double> seconds_since(const Event& earlier) const override;

  cudaEvent_t raw() const noexcept { return event_; }

 private:
  const int device_;
  const std::shared_ptr<const Failure> failure_;
  const bool timed_;
  cudaEvent_t event_ = nullptr;
};

// The CUDA stream behind `stream`, its device made current: what operators launch on. Error(internal) for a stream of
// another backend.
cudaStream_t raw(Stream& stream);

// Makes `device` the one that this host thread's CUDA calls go to. Costs next to nothing where it already is.
void use_device(int device);

}  // namespace ananke::cuda
