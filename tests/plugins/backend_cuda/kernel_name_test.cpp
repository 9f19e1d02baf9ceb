#include "plugins/backend_cuda/kernel_name.h"

#include <gtest/gtest.h>

namespace ananke::cuda {
namespace {

TEST(KernelNames, StayWhereTheyAreNoneOfCpp) {
  EXPECT_EQ(short_kernel_name("sm90_xmma_gemm_bf16_tn"), "sm90_xmma_gemm_bf16_tn");
  EXPECT_EQ(short_kernel_name(""), "");
  EXPECT_EQ(short_kernel_name("_Znonsense("), "_Znonsense(");
}

TEST(KernelNames, LoseTypeNamespacesAndParameters) {
  EXPECT_EQ(short_kernel_name("_ZN6ananke4cuda6kernelIfEEvPKfi"), "kernel<float>");
  EXPECT_EQ(short_kernel_name("_ZN6ananke4cuda12_GLOBAL__N_110add_kernelEPKf"), "add_kernel");
  EXPECT_EQ(short_kernel_name("_Z3sumPKfS0_Pfi"), "sum");
  EXPECT_EQ(short_kernel_name("_ZN1a4kernIN1b5ThingEEEvPT_"), "kern<b::Thing>");
  EXPECT_EQ(short_kernel_name("_Z3runPFvvE"), "run") << "parameters with parentheses of their own";
}

TEST(KernelNames, AreCutWhereTheyAreLong) {
  const std::string name = short_kernel_name(std::string(300, 'x'));
  EXPECT_EQ(name.size(), 96u);
  EXPECT_TRUE(name.ends_with("x..."));
}

}  // namespace
}  // namespace ananke::cuda
