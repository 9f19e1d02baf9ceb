#include "runtime/base/replace_file.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

TEST(ReplaceFile, NamesWhatCannotBeReplaced) {
  EXPECT_NAMES(refusal(ErrorKind::resource, [] { commit_file("/no/such/partial", "/no/such/file"); }),
               "/no/such/partial");
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
