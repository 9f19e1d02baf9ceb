#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "launcher/command.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

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
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--format", "csv", "a.txt"}), "there are: auto");
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--source", "none.txt:heavy"}), "no number follows");
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--jobs", "0", "a.txt"}), "--jobs 0");
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--train-tokenizer", "300", "a.txt"}), "the model to write");
  EXPECT_NAMES(misused("head", {}), "exactly one STORE");
  EXPECT_NAMES(misused("import", {"--outptu", "x.h5", "a.txt"}), "--output");
  EXPECT_NAMES(misused("info", {}), "exactly one STORE");
  EXPECT_NAMES(misused("info", {"a", "b"}), "exactly one STORE");
  EXPECT_NAMES(misused("ngram", {"--train", "x.h5"}), "both needed");
}

TEST(CommandData, TrainsATokenizerImportsAndShowsTheText) {
  ::setenv("ANANKE_TOKENIZE", ANANKE_BINARY_DIR "/bin/ananke-tokenize", 1);
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("the cat number {} sat on \"the mat\"\n", i);
  for (const char* name : {"a.txt", "b.txt"}) folder.write(name, text);
  const std::string store = (folder / "t.h5").string(), model = (folder / "m.model").string();
  const std::vector<std::string> import = {"--tokenizer", model,
                                           "--output",    store,
                                           "--source",    (folder / "a.txt").string() + ":3",
                                           "--source",    (folder / "b.txt").string() + ":1"};
  std::vector<std::string> trained = import;
  trained.insert(trained.end(), {"--train-tokenizer", "300"});
  const std::string output = output_of("import", trained);
  for (const char* word : {"a tokenizer of 300 tokens", "a.txt: ", "b.txt: ", "of the store"}) {
    EXPECT_NAMES(output, word);
  }
  EXPECT_NAMES(refusal(ErrorKind::usage, [&] { run("import", trained); }), "would replace");
  EXPECT_NAMES(refusal(ErrorKind::usage, [&] { run("head", {store}); }), "--tokenizer FILE");
  const std::string head = output_of("head", {store, "--tokenizer", model, "--documents", "1", "--tokens", "40"});
  EXPECT_NAMES(head, "): \"the cat number 0 sat on \\\"the mat\\\"\\nthe cat");
  EXPECT_EQ(std::count(head.begin(), head.end(), '\n'), 1);
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
  EXPECT_EQ(output_of("head", {store, "-n", "1"}), "0 (23 tokens): \"the cat sat on the mat\"\n");
  EXPECT_EQ(output_of("head", {store, "-n", "1", "--tokens", "3"}), "0 (23 tokens): \"the\"...\n");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { run("head", {store, "--tokenizer", "none.model"}); }), "none.model");
}

}  // namespace
}  // namespace ananke
