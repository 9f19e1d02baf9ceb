// The plugin's class where nothing is started, and on a machine without a GPU.
#include <gtest/gtest.h>

#include <functional>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/backend_cuda/backend_cuda.h"
#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

struct Setting {
  Job job;
  Site site;
  plugin::BackendCuda config;
  bool dry = true;
  BackendCuda make() {
    RoleContext context{.job = job, .site = site, .mesh = {1, 1}, .rank = 0};
    context.dry = dry;
    return BackendCuda(context, config);
  }
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.what());
  }
  return "";
}

TEST(BackendCudaMisuse, LimitsThatContradictAreRefused) {
  Setting setting;
  auto& limit = *setting.config.add_communicator();
  limit.set_name("shard");
  limit.set_min_ctas(8);
  limit.set_max_ctas(4);
  EXPECT_EQ(error_of([&] { setting.make(); }),
            "config: backend_cuda: communicator shard has min_ctas 8 above max_ctas 4");
  limit.set_max_ctas(8);
  EXPECT_EQ(error_of([&] { setting.make(); }), "");
}

TEST(BackendCudaMisuse, SumsInSwitchesAreRefusedForADeterministicJob) {
  Setting setting;
  setting.config.set_nvlink_sharp(true);
  EXPECT_EQ(error_of([&] { setting.make(); }), "");
  setting.job.mutable_training()->set_deterministic(true);
  EXPECT_EQ(error_of([&] { setting.make(); }),
            "config: training.deterministic: backend_cuda cannot promise the same bits with nvlink_sharp, whose sums "
            "are in an order of the switches' own; remove one of the two");
  setting.config.set_nvlink_sharp(false);
  EXPECT_EQ(setting.make().determinism(),
            "kernels and NCCL's collectives add in one order on the same nodes; attention by kernels that do");
}

TEST(BackendCudaMisuse, ADryRunOpensNoDevice) {
  Setting setting;
  BackendCuda backend = setting.make();
  EXPECT_EQ(error_of([&] { backend.device(); }).rfind("internal: ", 0), 0u);
}

TEST(BackendCudaMisuse, AMachineWithoutAGpuIsNamed) {
  const std::string why = cuda::why_no_device();
  if (why.empty()) GTEST_SKIP() << "this machine has a GPU";
  Setting setting;
  setting.dry = false;
  BackendCuda backend = setting.make();
  EXPECT_EQ(error_of([&] { backend.device(); }), "resource: " + why);
  EXPECT_EQ(error_of([&] { backend.operators(); }), "resource: " + why);
}

TEST(BackendCuda, SizesCanBePlannedWithoutADevice) {
  Setting setting;
  BackendCuda backend = setting.make();
  const OperatorSet& set = backend.operators();
  EXPECT_EQ(&set, &backend.operators());
  EXPECT_TRUE(set.embedding && set.attention && set.router_balance && set.exchange && set.wire);
  EXPECT_GT(set.newton_schulz->workspace({2, 256, 512}), 0u);
  EXPECT_GT(set.permute->workspace(4096, 64), 0u);
}

TEST(BackendCuda, PlansForWhatTheJobComputesIn) {
  Setting wide, narrow;
  narrow.job.mutable_training()->set_compute(Training::BF16);
  BackendCuda in_fp32 = wide.make(), in_bf16 = narrow.make();
  EXPECT_TRUE(in_fp32.computes_in(DType::f32) && in_fp32.computes_in(DType::bf16));
  EXPECT_FALSE(in_fp32.computes_in(DType::f8_e4m3));
  const GroupedMlp::Sizes sizes{4096, 256, 128, 8};
  EXPECT_EQ(in_fp32.operators().grouped_mlp->saved(sizes), 2 * in_bf16.operators().grouped_mlp->saved(sizes));
}

}  // namespace
}  // namespace ananke
