#include "launcher/console_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <thread>

#include "tests/patience.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

TEST(ConsoleWriter, NeverWaitsForAReaderWhoHasStopped) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::optional<ConsoleWriter> writer(ends[1]);
  const std::string line(999, 'x');
  for (int i = 0; i < 10'000; ++i) writer->add(line);  // nobody reads yet
  EXPECT_FALSE(writer->flush(milliseconds(50)));
  std::string read_text;
  std::thread reader([&] {
    char bytes[65536];
    for (ssize_t got; (got = read(ends[0], bytes, sizeof bytes)) > 0;) {
      read_text.append(bytes, static_cast<std::size_t>(got));
    }
  });
  EXPECT_TRUE(writer->flush(test_patience));
  writer->add("the end");
  EXPECT_TRUE(writer->flush(test_patience));
  writer.reset();
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_NE(read_text.find("lines dropped: the console was too slow]\n"), std::string::npos);
  EXPECT_TRUE(read_text.ends_with("the end\n"));
  EXPECT_GT(read_text.size(), 500'000u);
}

TEST(ConsoleWriter, OutlivesItsReader) {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  ConsoleWriter writer(ends[1]);
  for (int i = 0; i < 10; ++i) writer.add("nobody reads this");
  EXPECT_TRUE(writer.flush(test_patience));
  close(ends[1]);
}

}  // namespace
}  // namespace ananke
