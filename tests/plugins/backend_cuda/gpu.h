// What the tests with label gpu share: skipping with a reason, ranks as threads with a GPU each.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/collective_watch.h"
#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/device_choice.h"
#include "plugins/backend_cuda/environment.h"
#include "plugins/backend_cuda/nccl_communicator.h"
#include "plugins/backend_cuda/peers.h"
#include "runtime/base/error.h"
#include "runtime/comm/local_rendezvous.h"

namespace ananke::testing {

// How many GPUs this process can use: 0 with the reason where none.
inline int gpus(std::string* reason = nullptr) {
  const std::string why = cuda::why_no_device();
  if (reason) *reason = why;
  return why.empty() ? static_cast<int>(cuda::visible_devices().size()) : 0;
}

#define ANANKE_NEEDS_GPUS(count)                                                                                 \
  do {                                                                                                           \
    std::string ananke_reason;                                                                                   \
    const int ananke_gpus = ::ananke::testing::gpus(&ananke_reason);                                             \
    if (ananke_gpus < (count)) {                                                                                 \
      GTEST_SKIP() << "needs " << (count) << " GPUs, has " << ananke_gpus << (ananke_reason.empty() ? "" : ": ") \
                   << ananke_reason;                                                                             \
    }                                                                                                            \
  } while (false)

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", ananke::name_of(error.kind()), error.what());
  }
  return "";
}

inline std::unique_ptr<cuda::CudaDevice> open_gpu(int ordinal) {
  cuda::prepare_environment({});
  cuda::CudaDevice::Setup setup;
  setup.device = ordinal;
  setup.uuid = cuda::visible_devices().at(static_cast<std::size_t>(ordinal)).uuid;
  return std::make_unique<cuda::CudaDevice>(setup);
}

// A vector on the device, and back.
template <class T>
struct OnDevice {
  OnDevice(Device& device, std::int64_t count) : device(device), count(count) {
    buffer = device.memory().allocate(static_cast<std::size_t>(count) * sizeof(T), "test");
  }
  OnDevice(Device& device, const std::vector<T>& values) : OnDevice(device, static_cast<std::int64_t>(values.size())) {
    write(values);
  }
  void write(const std::vector<T>& values) {
    if (values.empty()) return;
    const std::size_t bytes = values.size() * sizeof(T);
    Buffer staging = device.host_memory().allocate(bytes, "test (host)");
    std::memcpy(staging.data(), values.data(), bytes);
    Stream& stream = device.stream(Resource::host_to_device);
    device.copy(stream, buffer.data(), staging.data(), bytes);
    stream.synchronize();
  }
  std::vector<T> read() const {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) device.read(view(), values.data());
    return values;
  }
  TensorView view() const { return {buffer.data(), dtype_of<T>(), Shape{count}}; }

  Device& device;
  std::int64_t count;
  Buffer buffer;
};

// One rank of a group that lives in this process.
struct GpuRank {
  int rank = 0, size = 1;
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<cuda::CudaDevice> device;
  std::unique_ptr<cuda::CollectiveWatch> watch = std::make_unique<cuda::CollectiveWatch>();
  std::chrono::milliseconds deadline{20000};
  int row_blocks = 8, sum_blocks = 24;  // of communicators made from now on

  std::unique_ptr<cuda::NcclCommunicator> communicator(const std::string& name) {
    cuda::NcclCommunicator::Setup setup;
    setup.name = name;
    setup.ranks.resize(static_cast<std::size_t>(size));
    std::iota(setup.ranks.begin(), setup.ranks.end(), 0);
    setup.rank = rank;
    setup.connect_deadline = std::chrono::seconds(60);
    setup.step_deadline = deadline;
    setup.row_blocks = row_blocks;
    setup.sum_blocks = sum_blocks;
    std::unique_ptr<cuda::Peers> peers;
    if (size > 1) {
      int version = 0;
      cuda::check(ncclGetVersion(&version), "ask NCCL for its version");
      cuda::PeerCard card{this_process(), device->uuid(), version, ""};
      if (rank == 0) {
        ncclUniqueId id{};
        cuda::check(ncclGetUniqueId(&id), "make an id");
        card.nccl_id.assign(reinterpret_cast<const char*>(&id), sizeof id);
      }
      peers = std::make_unique<cuda::Peers>(setup.ranks, rank, std::move(card), "test/" + name, *rendezvous);
    }
    return std::make_unique<cuda::NcclCommunicator>(std::move(setup), std::move(peers), *device, *watch);
  }
  Stream& network() { return device->stream(Resource::network); }
};

// Runs body(rank, its rendezvous) as one thread per rank; what each threw ("kind: message", empty: nothing).
inline std::vector<std::string> errors_of_ranks(
    int size, const std::function<void(int rank, std::unique_ptr<Rendezvous> rendezvous)>& body) {
  auto world = LocalWorld::create(size, std::chrono::seconds(60));
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { errors[static_cast<std::size_t>(r)] = error_of([&] { body(r, world->join(r)); }); });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

// Likewise, rank r on GPU r.
inline std::vector<std::string> run_gpu_ranks(int size, const std::function<void(GpuRank&)>& body,
                                              std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  return errors_of_ranks(size, [&](int r, std::unique_ptr<Rendezvous> rendezvous) {
    GpuRank rank;
    rank.rank = r;
    rank.size = size;
    rank.deadline = deadline;
    rank.rendezvous = std::move(rendezvous);
    rank.device = open_gpu(r);
    body(rank);
  });
}

}  // namespace ananke::testing
