#include "runtime/comm/rank_processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "runtime/base/descriptor.h"
#include "runtime/base/error.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

TEST(RankProcesses, ThrowWhatARankFailsWithAndKillTheOthers) {
  const auto work = [](int rank, Rendezvous& ranks) {
    if (rank == 2) fail(ErrorKind::data, "a file that is not there");
    ranks.exchange("all", {}, "");
  };
  EXPECT_ERROR(run_rank_processes(4, minutes(5), work), ErrorKind::data, "rank 2: a file that is not there");
}

TEST(RankProcesses, NameTheSignalThatEndsARank) {
  const auto work = [](int rank, Rendezvous& ranks) {
    if (rank == 1) raise(SIGKILL);
    ranks.exchange("all", {}, "");
  };
  EXPECT_ERROR(run_rank_processes(2, minutes(5), work), ErrorKind::worker_failed,
               "rank 1 was ended by signal 9 (Killed)");
}

TEST(RankProcesses, SayWhoDidNotCome) {
  const auto work = [](int rank, Rendezvous& ranks) {
    const int members[] = {0, 1};
    if (rank == 0) ranks.exchange("both", members, "");
  };
  EXPECT_ERROR(run_rank_processes(2, milliseconds(20), work), ErrorKind::stalled,
               "rank 0: exchange both: rank 1 did not come within 20 ms");
}

TEST(RankProcesses, LeaveNothingBehindWhenTheyAreAskedToEnd) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    const TemporaryFolder folder;
    Pipe begun;
    const pid_t process = fork();
    if (process == 0) {
      std::signal(number, SIG_DFL);  // nohup has some ignored
      setenv("TMPDIR", folder.path().c_str(), 1);
      const pid_t parent = getpid();
      try {
        run_rank_processes(2, minutes(5), [&](int rank, Rendezvous& ranks) {
          const int members[] = {0, 1};
          const char byte = 'b';
          if (rank == 0 && (getppid() != parent || write(begun.write.get(), &byte, 1) != 1)) return;
          if (rank == 0) ranks.exchange("both", members, "");
          if (rank == 1) pause();
        });
      } catch (const Error&) {
      }
      _exit(1);
    }
    begun.write.close();
    char byte = 0;
    ASSERT_EQ(read(begun.read.get(), &byte, 1), 1);
    EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
    ASSERT_EQ(kill(process, number), 0);
    int status = 0;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(read(begun.read.get(), &byte, 1), 0) << "ranks would hold the other end";
  }
}

TEST(RankProcesses, ExchangeAndShareNumbers) {
  const SharedFloats numbers(8);
  const pid_t parent = getpid();
  run_rank_processes(4, minutes(5), [&](int rank, Rendezvous& ranks) {
    if (getpid() == parent) fail(ErrorKind::internal, "rank {} is no process of its own", rank);
    const int odd[] = {1, 3};
    const auto all = ranks.exchange("all", {}, std::to_string(rank));
    numbers.all()[static_cast<std::size_t>(rank)] = std::stof(all[3]) * 10 + std::stof(all[1]);
    if (rank % 2 == 0) return;
    const auto two = ranks.exchange("odd", odd, std::string("\0x", 2) + std::to_string(rank));
    numbers.all()[4 + static_cast<std::size_t>(rank)] = std::stof(two[0].substr(2)) + std::stof(two[1].substr(2));
  });
  const std::vector<float> wanted{31, 31, 31, 31, 0, 4, 0, 4};
  EXPECT_EQ(std::vector<float>(numbers.all().begin(), numbers.all().end()), wanted);
}

}  // namespace
}  // namespace ananke
