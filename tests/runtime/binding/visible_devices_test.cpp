#include "runtime/binding/visible_devices.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using Entries = std::vector<std::string>;

TEST(VisibleDevices, AbsurdTextsAreRefusedQuotingTheVariable) {
  for (const char* text : {"a", "0,,1", "0,", ",0", "0;1", "1.5", "0x1", "all", "unlimited", "-2", "0,-1", "GPU-",
                           "MIG-", "99999999999999999999", "0 1", "--"}) {
    EXPECT_ERROR(read_visible_devices(text), ErrorKind::config, "CUDA_VISIBLE_DEVICES='", "is no device", "unset it");
  }
  EXPECT_ERROR(read_visible_devices("0,1,0"), ErrorKind::config, "CUDA_VISIBLE_DEVICES='0,1,0'", "device 0 twice");
  EXPECT_ERROR(read_visible_devices(std::string(5000, 'x').c_str()), ErrorKind::config, "is no device");
}

TEST(VisibleDevices, ReadsWhatSchedulersWrite) {
  EXPECT_FALSE(read_visible_devices(nullptr).set);
  EXPECT_EQ(read_visible_devices("0,1,2,3").entries, (Entries{"0", "1", "2", "3"}));
  EXPECT_EQ(read_visible_devices(" 3, 1 ").entries, (Entries{"3", "1"}));
  EXPECT_EQ(read_visible_devices("GPU-8932f937-d72c,GPU-aa").entries, (Entries{"GPU-8932f937-d72c", "GPU-aa"}));
  EXPECT_EQ(read_visible_devices("MIG-GPU-8932f937/1/0").entries, (Entries{"MIG-GPU-8932f937/1/0"}));
  for (const char* text : {"", "  ", "-1", "NoDevFiles"}) {
    EXPECT_TRUE(read_visible_devices(text).set) << text;
    EXPECT_TRUE(read_visible_devices(text).entries.empty()) << text;
  }
}

TEST(VisibleDevices, WhereCudaStopsReadingIsTold) {
  const VisibleText text = read_visible_devices("0,9,1");
  EXPECT_ERROR(check_all_visible(text, 1), ErrorKind::config, "CUDA_VISIBLE_DEVICES='0,9,1', 3 devices",
               "CUDA sees 1 of them and stops at '9'");
  check_all_visible(text, 3);
  check_all_visible(read_visible_devices(nullptr), 0);
  EXPECT_ERROR(check_all_visible(read_visible_devices("MIG-a,MIG-b"), 1), ErrorKind::config, "one MIG instance");
}

}  // namespace
}  // namespace ananke
