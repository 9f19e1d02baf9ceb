// A fragment of more than 2^31 elements, through a real file of 8.6 GB.
#include <sys/mman.h>

#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

TEST_F(CheckpointTest, AFragmentOfMoreThanTwoToThe31ElementsIsWrittenAndReadFromItsEnd) {
  constexpr std::int64_t count = (std::int64_t{1} << 31) + 100, tail = 10;
  std::filesystem::create_directories(run_dir);
  if (std::filesystem::space(run_dir).available < 12'000'000'000) GTEST_SKIP() << "12 GB of disk are needed";
  // Untouched, it takes no memory.
  auto* data = static_cast<float*>(::mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(static_cast<void*>(data), MAP_FAILED);
  ::madvise(data, count * sizeof(float), MADV_HUGEPAGE);
  for (std::int64_t i = 0; i < tail; ++i) data[count - tail + i] = static_cast<float>(i + 1);
  const StateFragment whole{"w", "weight", {count}, 0, count, data};
  const auto errors = as_ranks(1, [&](int, Rendezvous& rendezvous) {
    Checkpoints(run_dir, rendezvous).save({1, 0, 0, ""}, test_job(), std::span(&whole, 1), 0);
  });
  ASSERT_EQ(errors, all_of(1, ""));
  std::vector<float> read(tail + 1, -1);
  const StateTarget end{"w", "weight", {count}, count - tail - 1, tail + 1, read.data()};
  as_ranks(1, [&](int, Rendezvous& rendezvous) {
    EXPECT_TRUE(Checkpoints(run_dir, rendezvous).load_newest(std::span(&end, 1)).has_value());
  });
  for (std::int64_t i = 0; i <= tail; ++i) EXPECT_EQ(read[static_cast<std::size_t>(i)], static_cast<float>(i));
  ::munmap(data, count * sizeof(float));
}

}  // namespace
}  // namespace ananke
