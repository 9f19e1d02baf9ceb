#include "runtime/base/scratch_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

std::size_t entries_of(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ScratchFolder, SaysWhereNoneCanBeMade) {
  EXPECT_ERROR(ScratchFolder("/no/such", "x", "sockets"), ErrorKind::resource, "/no/such/x.", "for sockets",
               "set TMPDIR");
}

TEST(ScratchFolder, IsThisUsersAloneAndGoesWithItsOwner) {
  const TemporaryFolder parent;
  {
    const ScratchFolder one(parent.path(), "kind", "a test"), two(parent.path(), "kind", "a test");
    EXPECT_NE(one.path(), two.path()) << "the first is held, so the second has not removed it";
    EXPECT_TRUE(fs::exists(one.path()));
    struct stat status {};
    ASSERT_EQ(stat(one.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    std::ofstream(two.path() / "file") << "content";
  }
  EXPECT_EQ(entries_of(parent.path()), 0u);
}

// What a killed process has left is removed by the next, and nothing else is.
TEST(ScratchFolder, RemovesWhatAKilledProcessLeft) {
  const TemporaryFolder parent;
  const pid_t process = fork();
  if (process == 0) {
    const ScratchFolder left(parent.path(), "kind", "a test");
    std::ofstream(left.path() / "socket") << "content";
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(process, nullptr, 0), process);
  ASSERT_EQ(entries_of(parent.path()), 1u);
  fs::create_directories(parent / "kind.without-lock");
  const fs::path other = parent.write("elsewhere/.held", "").parent_path();
  fs::create_directory_symlink(other, parent / "kind.link");
  parent.write("kind.file", "");
  {
    const ScratchFolder other_kind(parent.path(), "other", "a test");
    EXPECT_EQ(entries_of(parent.path()), 6u) << "of another kind: nothing is looked at";
  }
  const ScratchFolder next(parent.path(), "kind", "a test");
  EXPECT_EQ(entries_of(parent.path()), 5u);
  for (const char* kept : {"kind.without-lock", "kind.link", "kind.file", "elsewhere/.held"}) {
    EXPECT_TRUE(fs::exists(parent / kept)) << kept;
  }
}

TEST(ScratchFolder, OfAForkedProcessIsHeldAsLongAsThatLives) {
  const TemporaryFolder parent;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    const ScratchFolder held(parent.path(), "kind", "a test");
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    if (write(ready[1], &child, sizeof child) != sizeof child) _exit(1);
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(owner, nullptr, 0), owner);
  pid_t child = 0;
  ASSERT_EQ(read(ready[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  { const ScratchFolder next(parent.path(), "kind", "a test"); }
  EXPECT_EQ(entries_of(parent.path()), 1u);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace ananke
