// What ranks tell each other before NCCL connects them, ranks as threads; no GPU is needed.
#include "plugins/backend_cuda/peers.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/local_rendezvous.h"

namespace ananke::cuda {
namespace {

std::vector<std::string> as_ranks(int size, const std::function<void(int, Rendezvous&)>& body) {
  auto world = LocalWorld::create(size, std::chrono::seconds(20));
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto mine = world->join(rank);
        body(rank, *mine);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = fmt::format("{}: {}", ananke::name_of(error.kind()), error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

PeerCard card(int rank) {
  return {this_process(), "GPU-" + std::to_string(rank), 22809, rank == 0 ? std::string("\0\xff id", 5) : ""};
}

TEST(PeersMisuse, TwoRanksWithOneDeviceAreRefusedOnAll) {
  const auto errors = as_ranks(3, [](int rank, Rendezvous& rendezvous) {
    PeerCard mine = card(rank == 2 ? 1 : rank);
    Peers peers({0, 1, 2}, rank, mine, "k", rendezvous);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("config: rank 1 ("), std::string::npos) << error;
    EXPECT_NE(error.find("both have GPU-1"), std::string::npos) << error;
  }
}

TEST(PeersMisuse, TwoVersionsOfTheLibraryAreRefused) {
  const auto errors = as_ranks(2, [](int rank, Rendezvous& rendezvous) {
    PeerCard mine = card(rank);
    if (rank == 1) mine.nccl = 22705;
    Peers peers({0, 1}, rank, mine, "k", rendezvous);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("has NCCL 2.28.9, rank 1 ("), std::string::npos) << error;
    EXPECT_NE(error.find("NCCL 2.27.5; install"), std::string::npos) << error;
  }
}

TEST(Peers, CardsComeThroughAsTheyWere) {
  const PeerCard before = card(0), after = decode(encode(before));
  EXPECT_EQ(after.uuid, before.uuid);
  EXPECT_EQ(after.nccl, before.nccl);
  EXPECT_EQ(after.nccl_id, before.nccl_id);
  EXPECT_EQ(after.process.start, before.process.start);
  EXPECT_EQ(after.process.process, getpid());
  EXPECT_THROW(decode("x"), Error);
}

TEST(Peers, AThreadThatLeavesIsMissed) {
  std::string lost;
  const auto errors = as_ranks(3, [&](int rank, Rendezvous& rendezvous) {
    Peers peers({0, 1, 2}, rank, card(rank), "k", rendezvous);
    EXPECT_EQ(peers.nccl_id(), card(0).nccl_id);
    EXPECT_EQ(peers.lost(), "");
    rendezvous.exchange("before", {}, "");
    if (rank == 1) peers.leave();
    rendezvous.exchange("after", {}, "");
    if (rank == 0) lost = peers.lost();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_NE(lost.find("rank 1 ("), std::string::npos) << lost;
  EXPECT_NE(lost.find("is gone"), std::string::npos) << lost;
}

TEST(Peers, AProcessThatEndsIsMissed) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {  // lives until its parent says so
    char byte = 0;
    close(pipe_ends[1]);
    _exit(read(pipe_ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(pipe_ends[0]);
  std::string start;
  {
    ProcessIdentity other = this_process();
    other.process = child;
    const std::string path = fmt::format("/proc/{}/stat", child);
    FILE* file = fopen(path.c_str(), "r");
    ASSERT_NE(file, nullptr);
    char line[1024] = "";
    ASSERT_NE(fgets(line, sizeof line, file), nullptr);
    fclose(file);
    std::string rest = std::string(line).substr(std::string(line).rfind(") ") + 2);
    for (int i = 0; i < 19; ++i) rest = rest.substr(rest.find(' ') + 1);
    start = rest.substr(0, rest.find(' '));
  }
  // Rank 1 is a thread here that speaks for the child.
  std::string before, after;
  const auto errors = as_ranks(2, [&](int rank, Rendezvous& rendezvous) {
    if (rank == 1) {
      PeerCard theirs = card(1);
      theirs.process.process = child;
      theirs.process.start = start;
      rendezvous.exchange("k/cards", std::vector<int>{0, 1}, encode(theirs));
      return;
    }
    const Peers peers({0, 1}, 0, card(0), "k", rendezvous);
    before = peers.lost();
    close(pipe_ends[1]);
    waitpid(child, nullptr, 0);
    after = peers.lost();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(before, "");
  EXPECT_NE(after.find(fmt::format("process {}) is gone", child)), std::string::npos) << after;
}

}  // namespace
}  // namespace ananke::cuda
