#include "runtime/base/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

TEST(ReadFile, SaysWhyNothingIsRead) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_file(folder / "none"), std::nullopt);
  EXPECT_EQ(refusal(ErrorKind::data, [&] { read_file(folder / "none", ErrorKind::data); }),
            "cannot read " + (folder / "none").string() + ": No such file or directory");
  EXPECT_NAMES(refusal(ErrorKind::config, [&] { read_file(folder.path(), ErrorKind::config); }), ": it is a folder");
  EXPECT_NAMES(refusal(ErrorKind::config, [&] { read_file(pipe, ErrorKind::config); }), ": it is no file");
  std::string why;
  EXPECT_EQ(read_file("/proc/self/mem", &why), std::nullopt);  // nothing is mapped at 0
  EXPECT_FALSE(why.empty());
}

TEST(ReadFile, GivesEveryByteAlsoOfFilesWithoutASize) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_file(folder.write("empty", "")), "");
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(read_file(folder.write("bytes", bytes), ErrorKind::data), bytes);
  EXPECT_NAMES(read_file("/proc/self/status").value_or(""), "Name:");
}

}  // namespace
}  // namespace ananke
