#include "launcher/slurm/lists.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using Names = std::vector<std::string>;

Names hosts(const std::string& text) { return parse_host_list("SLURM_JOB_NODELIST", text); }
std::string refused(const std::string& text) {
  return refusal(ErrorKind::config, [&] { hosts(text); });
}
std::string counts_refused(const std::string& text) {
  return refusal(ErrorKind::config, [&] { parse_counts("SLURM_JOB_CPUS_PER_NODE", text); });
}

TEST(HostList, QuotesWhatIsWrong) {
  EXPECT_EQ(
      refused("node[0-3"),
      "SLURM_JOB_NODELIST is 'node[0-3': no ']' to '[' at character 5; correct or unset it: expected is a text such "
      "as 'node[0-3,7],login'");
  EXPECT_NE(refused("node]0").find("'node]0': ']' without '[' at character 5; correct"), std::string::npos);
  EXPECT_NE(refused("node[3-0]").find("'node[3-0]': '3-0' is no range of numbers; correct"), std::string::npos);
  for (const char* text : {"node[]", "node[1,]", "node[a]", "node[1-]", "node[-1]", "node[0x1]", "node[1-2-3]",
                           "node[99999999999999999999]"}) {
    EXPECT_NE(refused(text).find("is no range of numbers"), std::string::npos) << text << ": " << refused(text);
  }
  EXPECT_NE(refused("a,,b").find("there is no name at character 3"), std::string::npos) << refused("a,,b");
  EXPECT_NE(refused(",a").find("there is no name at character 1"), std::string::npos);
  EXPECT_NE(refused("a,").find("it ends with a comma"), std::string::npos);
  EXPECT_NE(refused("n[0-999999999]").find("more than 1000000 names"), std::string::npos);
  EXPECT_NE(refused("n[0-9999]-[0-9999]").find("more than 1000000 names"), std::string::npos);
}

TEST(HostList, ReadsWhatSlurmWrites) {
  EXPECT_EQ(hosts(""), Names{});
  EXPECT_EQ(hosts("login"), Names{"login"});
  EXPECT_EQ(hosts("node[0-2,7],b,node9"), (Names{"node0", "node1", "node2", "node7", "b", "node9"}));
  EXPECT_EQ(hosts("jpbo-[001-002,010]-[01-02]"),
            (Names{"jpbo-001-01", "jpbo-001-02", "jpbo-002-01", "jpbo-002-02", "jpbo-010-01", "jpbo-010-02"}));
  EXPECT_EQ(hosts("n[09-11]x"), (Names{"n09x", "n10x", "n11x"}));
  EXPECT_EQ(hosts("n[8-10]"), (Names{"n8", "n9", "n10"}));
  EXPECT_EQ(hosts("[1-2]"), (Names{"1", "2"}));
  EXPECT_EQ(hosts("nid[000001-001536]").size(), 1536u);
}

TEST(Counts, QuoteWhatIsWrong) {
  for (const char* text : {"", "72,", ",72", "x", "72(x)", "72(x0)", "72(x2", "72(x2)3", "-1", "1(x9999999)", "7 2"}) {
    EXPECT_EQ(counts_refused(text),
              fmt::format("SLURM_JOB_CPUS_PER_NODE is '{}': it is no number for each node; correct "
                          "or unset it: expected is a text such as '72(x3),36'",
                          text));
  }
}

TEST(Counts, ReadsWhatSlurmWrites) {
  EXPECT_EQ(parse_counts("", "72"), std::vector<int>{72});
  EXPECT_EQ(parse_counts("", "72(x3),36"), (std::vector<int>{72, 72, 72, 36}));
}

}  // namespace
}  // namespace ananke
