// Which GPU a rank takes, as a table of what schedulers show to their tasks.
#include "plugins/backend_cuda/device_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

std::vector<VisibleDevice> devices(int count) {
  std::vector<VisibleDevice> all;
  for (int i = 0; i < count; ++i) all.push_back({"GPU-" + std::string(1, static_cast<char>('a' + i)), "NVIDIA H200"});
  return all;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(DeviceChoiceMisuse, NamesRankNumbersAndWhatIsThere) {
  const RankPlace place{.rank = 7, .ranks = 8, .local_rank = 3, .local_ranks = 4};
  expect_in(error_of([&] { choose_device(devices(2), {}, place); }), "rank 7 is the 3 of 4 ranks on its node");
  expect_in(error_of([&] { choose_device(devices(2), {}, place); }), "0: GPU-a, 1: GPU-b");
  expect_in(error_of([&] { choose_device(devices(4), {"0", "1"}, place); }), "device has 2 entries");
  expect_in(error_of([&] {
              choose_device(devices(4), {"0", "1", "2", "4"}, place);
            }),
            "rank 7 is to have device '4', but its process sees 4");
  expect_in(error_of([&] { choose_device(devices(4), {"0", "1", "2", "-1"}, place); }), "device '-1'");
  expect_in(error_of([&] { choose_device(devices(4), {"0", "1", "2", "GPU-x"}, place); }), "device 'GPU-x'");
}

TEST(DeviceChoice, FollowsTheLocalRankTheOnlyDeviceOrTheList) {
  const RankPlace place{.rank = 6, .ranks = 8, .local_rank = 2, .local_ranks = 4};
  EXPECT_EQ(choose_device(devices(4), {}, place), 2);
  EXPECT_EQ(choose_device(devices(8), {}, place), 2);
  EXPECT_EQ(choose_device(devices(1), {}, place), 0);  // the scheduler shows each task its own
  EXPECT_EQ(choose_device(devices(4), {"3", "2", "1", "0"}, place), 1);
  EXPECT_EQ(choose_device(devices(4), {"GPU-d", "GPU-c", "GPU-b", "GPU-a"}, place), 1);
  EXPECT_EQ(choose_device(devices(8), {"0", "1", "2", "3", "4", "5", "6", "7"}, place), 6);  // by rank of the job
}

TEST(DeviceChoice, TwoRanksWithOneDeviceAreBothNamed) {
  const std::vector<int> ranks{0, 2, 5};
  const std::vector<std::string> processes{"n1, process 1", "n1, process 2", "n2, process 1"};
  refuse_shared_devices(ranks, std::vector<std::string>{"GPU-a", "GPU-b", "GPU-c"}, processes);
  const std::string error = error_of([&] {
    refuse_shared_devices(ranks, std::vector<std::string>{"GPU-a", "GPU-b", "GPU-b"}, processes);
  });
  expect_in(error, "rank 2 (n1, process 2) and rank 5 (n2, process 1) both have GPU-b");
}

TEST(DeviceChoice, WritesUuidsAsTheDriverDoes) {
  std::array<char, 16> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0xF0 + i);
  EXPECT_EQ(uuid_text(bytes), "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
}

TEST(DeviceChoice, SaysWhyThereIsNoDevice) {
  const std::string why = why_no_device();
  if (why.empty()) GTEST_SKIP() << "this machine has a GPU";
  expect_in(why,
            why.find("driver") != std::string::npos ? "has no NVIDIA driver (libcuda.so.1)" : "CUDA_VISIBLE_DEVICES");
  try {
    visible_devices();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
  }
}

}  // namespace
}  // namespace ananke::cuda
