// The plugin's class with GPUs: ranks as threads, each with a backend of its own.
#include "plugins/backend_cuda/backend_cuda.h"

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "tests/plugins/backend_cuda/gpu.h"

namespace ananke::testing {
namespace {

struct Setting {
  Job job;
  Site site;
  plugin::BackendCuda config;
  BackendCuda make(int rank, int size) {
    return BackendCuda({.job = job, .site = site, .mesh = {1, size}, .rank = rank, .node_ranks = size}, config);
  }
};

std::vector<std::string> as_ranks(int size, const std::function<void(int, Rendezvous&)>& body) {
  auto world = LocalWorld::create(size, std::chrono::seconds(60));
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      errors[static_cast<std::size_t>(rank)] = error_of([&] {
        const auto mine = world->join(rank);
        body(rank, *mine);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<int> all_of(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(BackendCudaGpu, TwoRanksWithOneGpuAreRefusedNamingBoth) {
  ANANKE_NEEDS_GPUS(1);
  const auto errors = as_ranks(2, [](int rank, Rendezvous& rendezvous) {
    Setting setting;
    setting.config.add_device("0");
    setting.config.add_device(cuda::visible_devices()[0].uuid);
    BackendCuda backend = setting.make(rank, 2);
    backend.make_communicator("world", all_of(2), rendezvous);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("config: rank 0 ("), std::string::npos) << error;
    EXPECT_NE(error.find("and rank 1 ("), std::string::npos) << error;
    EXPECT_NE(error.find("both have GPU-"), std::string::npos) << error;
  }
}

TEST(BackendCudaGpu, OneRankHasAllThatAnEngineAsksFor) {
  ANANKE_NEEDS_GPUS(1);
  const auto errors = as_ranks(1, [](int rank, Rendezvous& rendezvous) {
    Setting setting;
    BackendCuda backend = setting.make(rank, 1);
    const OperatorSet& set = backend.operators();
    const auto world = backend.make_communicator("world", all_of(1), rendezvous);
    Device& device = backend.device();
    OnDevice<float> a(device, std::vector<float>{1, 2, 3}), sum(device, 3);
    set.elementwise->add(device.stream(Resource::compute), a.view(), a.view(), sum.view());
    world->all_reduce(device.stream(Resource::compute), sum.view(), Reduction::sum);
    EXPECT_EQ(sum.read(), (std::vector<float>{2, 4, 6}));
  });
  EXPECT_EQ(errors[0], "");
}

TEST(BackendCudaGpu, CommunicatorsOfLimitedCtasOverlapOnTwoStreams) {
  ANANKE_NEEDS_GPUS(2);
  const auto errors = as_ranks(2, [](int rank, Rendezvous& rendezvous) {
    Setting setting;
    for (const char* name : {"world", "expert"}) {
      auto& limit = *setting.config.add_communicator();
      limit.set_name(name);
      limit.set_max_ctas(4);
    }
    BackendCuda backend = setting.make(rank, 2);
    const auto world = backend.make_communicator("world", all_of(2), rendezvous);
    const auto expert = backend.make_communicator("expert", all_of(2), rendezvous);
    Device& device = backend.device();
    OnDevice<float> one(device, std::vector<float>(1 << 20, 1.F)), other(device, std::vector<float>(1 << 20, 2.F));
    for (int i = 0; i < 5; ++i) {
      world->all_reduce(device.stream(Resource::network), one.view(), Reduction::sum);
      expert->all_reduce(device.stream(Resource::nvlink), other.view(), Reduction::sum);
    }
    device.stream(Resource::network).synchronize();
    device.stream(Resource::nvlink).synchronize();
    EXPECT_EQ(one.read()[77], 32.F);
    EXPECT_EQ(other.read()[77], 64.F);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(BackendCudaGpu, WhatAKernelFoundWrongIsThrownByWhoWaits) {
  ANANKE_NEEDS_GPUS(1);
  const auto errors = as_ranks(1, [](int rank, Rendezvous&) {
    Setting setting;
    BackendCuda backend = setting.make(rank, 1);
    const OperatorSet& set = backend.operators();
    Device& device = backend.device();
    OnDevice<std::int32_t> ids(device, std::vector<std::int32_t>{0, 9});
    OnDevice<float> table(device, std::vector<float>(8 * 4, 1.F)), out(device, 2 * 4);
    set.embedding->forward(device.stream(Resource::compute),
                           {ids.view(), table.view().reshaped({8, 4}), out.view().reshaped({2, 4})});
    device.stream(Resource::compute).synchronize();
  });
  EXPECT_NE(errors[0].find("token 9 at position 1 of a table of 8 rows"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace ananke::testing
