#include "plugins/backend_cuda/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

TEST(EnvironmentMisuse, WhatMakesCallsWaitWithoutEndIsRefused) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_THROW(check_environment(), Error);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
  EXPECT_NO_THROW(check_environment());
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_NO_THROW(check_environment());
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  EXPECT_THROW(check_environment(), Error);
  unsetenv("NCCL_COMM_BLOCKING");
}

std::string refusal(int code, int built) {
  try {
    judge_nccl(code, built);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "";
}

TEST(EnvironmentMisuse, LibrariesThatAreTooOldAreNamed) {
  EXPECT_NE(refusal(22503, 22506).find("2.26 or newer, the libnccl.so.2 that this process found is 2.25.3"),
            std::string::npos);
  EXPECT_NE(refusal(22605, 22809).find("built with NCCL 2.28.9, the libnccl.so.2 that this process found is 2.26.5"),
            std::string::npos);
}

TEST(Environment, TakesTheVersionsItWasTriedWithAndRemarksOnNewerOnes) {
  for (const int code : {22602, 22707, 22803, 22809}) EXPECT_EQ(judge_nccl(code, 22602), "");
  EXPECT_EQ(judge_nccl(22807, 22809), "");  // a patch level is no other interface
  EXPECT_NE(judge_nccl(23007, 22809).find("NCCL 2.30.7 is newer"), std::string::npos);
}

TEST(Environment, SetsWhatIsReadOnceAndKeepsWhatTheUserSet) {
  setenv("NCCL_NVLS_ENABLE", "2", 1);
  prepare_environment({.eager_modules = true, .nvlink_sharp = false, .all_to_all_ctas = 6, .network_interface = "lo"});
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(std::getenv("NCCL_MAX_P2P_NCHANNELS"), "6");
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "2");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=lo");
  prepare_environment({.eager_modules = true, .nvlink_sharp = false, .all_to_all_ctas = 7, .network_interface = ""});
  EXPECT_STREQ(std::getenv("NCCL_MAX_P2P_NCHANNELS"), "6");
  unsetenv("NCCL_NVLS_ENABLE");
}

}  // namespace
}  // namespace ananke::cuda
