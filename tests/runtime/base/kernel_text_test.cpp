#include "runtime/base/kernel_text.h"

#include <gtest/gtest.h>

#include <fstream>

namespace ananke {
namespace {

TEST(KernelText, LeavesOutWhatIsNoEntry) {
  EXPECT_TRUE(parse_kernel_table("").empty());
  using std::string_view_literals::operator""sv;
  for (const auto line : {"\0\0"sv, ":"sv, ": 5"sv, "MemTotal"sv, "MemTotal: kB"sv, "MemFree: -3 kB"sv, "X: 1 MB"sv}) {
    EXPECT_TRUE(parse_kernel_table(line).empty()) << line;
  }
  EXPECT_TRUE(parse_kernel_table("MemTotal: 99999999999999999999999 kB\n").empty());
  EXPECT_TRUE(parse_kernel_table("MemTotal: 18446744073709551615 kB\n").empty());  // more bytes than can be counted
}

TEST(KernelText, ReadsTablesOfAllKinds) {
  const KernelTable table = parse_kernel_table(
      "MemTotal:       24683652 kB\nNode 3 MemFree:   12 kB\nNode 12 HugePages_Total:     5\ninactive_file 123\n"
      "Active(file):    7 kB");
  EXPECT_EQ(table.at("MemTotal"), 24683652ULL * 1024);
  EXPECT_EQ(table.at("MemFree"), 12U * 1024);
  EXPECT_EQ(table.at("HugePages_Total"), 5U);
  EXPECT_EQ(table.at("inactive_file"), 123U);
  EXPECT_EQ(table.at("Active(file)"), 7U * 1024);
}

TEST(KernelText, NumbersAndLists) {
  for (const char* text : {"x", "1-", "-1", "3-1", "1,,2", "1 2", "1-2-3", "1;2"}) {
    EXPECT_FALSE(parse_number_list(text)) << text;
  }
  EXPECT_FALSE(parse_number("12x"));
  EXPECT_FALSE(parse_number(""));
  EXPECT_EQ(parse_number(" 12\n"), 12U);
  EXPECT_TRUE(parse_number_list("\n")->empty());
  const auto list = parse_number_list("0-71,144,146-147\n");
  ASSERT_TRUE(list);
  EXPECT_TRUE(contains_number(*list, 71) && contains_number(*list, 144) && contains_number(*list, 147));
  EXPECT_FALSE(contains_number(*list, 72) || contains_number(*list, 145));
  EXPECT_TRUE(have_common_number(*list, {{100, 144}}));
  EXPECT_FALSE(have_common_number(*list, {{100, 143}}));
  EXPECT_FALSE(have_common_number(*list, {}));
}

}  // namespace
}  // namespace ananke
