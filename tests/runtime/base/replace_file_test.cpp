#include "runtime/base/replace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

TEST(ReplaceFile, NamesWhatCannotBeReplaced) {
  EXPECT_NAMES(refusal(ErrorKind::resource, [] { commit_file("/no/such/partial", "/no/such/file"); }),
               "/no/such/partial");
}

TEST(ReplaceFile, LeavesWhatIsNoFileAlone) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_ERROR(ReplacedFile{pipe}, ErrorKind::resource, pipe.string(), "is a device, a pipe or a socket");
  EXPECT_ERROR(commit_file(folder.write("made", "new"), pipe), ErrorKind::resource, "give the name of a file");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(ReplaceFile, ReplacesWhatALinkLeadsTo) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.write("file", "old"), link = folder / "link";
  std::filesystem::create_symlink(file, link);
  ReplacedFile replaced(link);
  std::ofstream(replaced.partial()) << "new";
  replaced.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_text(file), "new");
}

TEST(ReplaceFile, KeepsTheOldFileUntilCommitAndCleansUpWithoutIt) {
  TemporaryFolder folder;
  folder.write("f", "old");
  {
    ReplacedFile file(folder / "f");
    std::ofstream(file.partial()) << "half";
  }
  EXPECT_EQ(read_text(folder / "f"), "old");
  ReplacedFile file(folder / "f");
  std::ofstream(file.partial()) << "new";
  EXPECT_EQ(read_text(folder / "f"), "old");
  file.commit();
  EXPECT_EQ(read_text(folder / "f"), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace ananke
