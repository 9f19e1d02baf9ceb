#include <gtest/gtest.h>

#include "launcher/command.h"
#include "tests/runtime/refusal.h"
#include "tests/runtime/temporary_folder.h"

namespace ananke {
namespace {

int run(const std::string& verb, const std::vector<std::string>& arguments) {
  for (const Command& command : all_commands()) {
    if (command.name == "data " + verb) return command.run(arguments);
  }
  ADD_FAILURE() << "no command data " << verb;
  return -1;
}

std::string output_of(const std::string& verb, const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run(verb, arguments), 0);
  return testing::internal::GetCapturedStdout();
}

TEST(CommandData, RefusesWrongUse) {
  const auto misused = [](const std::string& verb, const std::vector<std::string>& arguments) {
    return refusal(ErrorKind::usage, [&] { run(verb, arguments); });
  };
  EXPECT_NAMES(misused("import", {}), "--output is missing");
  EXPECT_NAMES(misused("import", {"--output", "x.h5"}), "no INPUT");
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--tokenizer", "byte", "a.txt"}), "there is: bytes");
  EXPECT_NAMES(misused("import", {"--outptu", "x.h5", "a.txt"}), "--output");
  EXPECT_NAMES(misused("info", {}), "exactly one FILE");
  EXPECT_NAMES(misused("info", {"a", "b"}), "exactly one FILE");
  EXPECT_NAMES(misused("ngram", {"--train", "x.h5"}), "both needed");
}

TEST(CommandData, ImportsDescribesAndScoresText) {
  TemporaryFolder folder;
  folder.write("text/a.txt", "the cat sat on the mat");
  folder.write("text/b.txt", "the dog sat on the log");
  const std::string store = (folder / "t.h5").string();
  EXPECT_NAMES(output_of("import", {"--tokenizer", "bytes", "--output", store, (folder / "text").string()}),
               "2 documents, 46 tokens");
  const std::string info = output_of("info", {store, "--check"});
  for (const char* word : {"targets          44", "vocabulary 257", "token 256 ends", "all checksums fit"})
    EXPECT_NAMES(info, word);
  const std::string scores = output_of("ngram", {"--train", store, "--heldout", store});
  for (const char* word : {"46 training tokens, 44 held-out targets", "unigram", "bigram", "bits per byte"})
    EXPECT_NAMES(scores, word);
  EXPECT_NAMES(output_of("import", {"--help"}), "--tokenizer");
}

}  // namespace
}  // namespace ananke
