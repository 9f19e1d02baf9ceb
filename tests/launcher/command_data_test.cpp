#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "launcher/command.h"
#include "runtime/base/hash.h"
#include "runtime/data/token_store.h"
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
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--train-bytes", "many", "a.txt"}), "--train-bytes: 'many'");
  EXPECT_NAMES(misused("import", {"--output", "x.h5", "--vocab-size", "-1", "a.txt"}), "--vocab-size -1");
  EXPECT_NAMES(misused("head", {"x.h5", "--tokens=-5"}), "--tokens -5 is no number of at least 0");
  EXPECT_NAMES(misused("head", {"x.h5", "-n", "-1"}), "--documents -1");
  EXPECT_NAMES(misused("head", {""}), "empty");
  const std::string unknown = misused("head", {"x.h5", "--verbose"});
  EXPECT_NAMES(unknown, "--documents");
  EXPECT_EQ(unknown.find("--words"), std::string::npos) << unknown;
  EXPECT_NAMES(misused("head", {}), "exactly one STORE");
  EXPECT_NAMES(misused("import", {"--outptu", "x.h5", "a.txt"}), "--output");
  EXPECT_NAMES(misused("info", {}), "exactly one STORE");
  EXPECT_NAMES(misused("info", {"a", "b"}), "exactly one STORE");
  EXPECT_NAMES(misused("ngram", {"--train", "x.h5"}), "both needed");
  EXPECT_NAMES(misused("pack", {"--sequence-length", "8", "--rows-per-step", "2"}), "no STORE");
  EXPECT_NAMES(misused("pack", {"x.h5", "--rows-per-step", "2"}), "--sequence-length is 0");
  EXPECT_NAMES(misused("pack", {"x.h5", "--sequence-length", "8", "--rows-per-step", "4294967296"}),
               "--rows-per-step is 4294967296, it must be 1 to 16777216");
  EXPECT_NAMES(misused("pack", {"x.h5", "--sequence-length", "16777217"}), "16777217, it must be 1 to 16777216");
  const std::vector<std::string> shape = {"x.h5", "--sequence-length", "8", "--rows-per-step", "6"};
  const auto with = [&](const char* option, const char* value) {
    std::vector<std::string> words = shape;
    words.insert(words.end(), {option, value});
    return misused("pack", words);
  };
  EXPECT_NAMES(with("--ranks", "4"), "no multiple of the 4 ranks");
  EXPECT_NAMES(with("--ranks", "0"), "--ranks is 0");
  EXPECT_NAMES(with("--window-steps", "0"), "--window-steps is 0");
  EXPECT_NAMES(with("--open-rows", "0"), "--open-rows is 0");
  EXPECT_NAMES(with("--break-even", "-3"), "--break-even");
  EXPECT_NAMES(with("--break-even", "1e308"), "--break-even");
  EXPECT_NAMES(misused("pack", {"none.h5:much", "--sequence-length", "8", "--rows-per-step", "2"}),
               "no number follows");
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
  const std::string head = output_of("head", {store, "--tokenizer", model, "--documents", "1", "--tokens", "40"});
  std::filesystem::remove(model);  // the store keeps it
  EXPECT_EQ(output_of("head", {store, "--documents", "1", "--tokens", "40"}), head);
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

TEST(CommandData, MakesNoStoreThatTeachesNothing) {
  TemporaryFolder folder;
  const std::string store = (folder / "t.h5").string();
  const auto refused = [&](const std::string& name, const std::string& text) {
    const std::string file = folder.write(name, text).string();
    const std::string message = refusal(ErrorKind::data, [&] {
      run("import", {"--output", store, "--source", file, "--source", file});
    });
    EXPECT_NAMES(message, file + " and 1 more");
    EXPECT_FALSE(std::filesystem::exists(store)) << name;
    return message;
  };
  EXPECT_NAMES(refused("none.txt", ""), "2 documents, none of two tokens");
  EXPECT_NAMES(refused("none.jsonl", "\n\n"), "0 documents");
  EXPECT_NAMES(refused("empty.jsonl", "{\"text\": \"\"}"), "2 documents");
  EXPECT_NAMES(output_of("import", {"--output", store, folder.write("a.txt", "a").string()}), "1 documents, 2 tokens");
}

// The output is looked at before a tokenizer is trained for it.
TEST(CommandData, NamesAFolderThatIsMissing) {
  ::setenv("ANANKE_TOKENIZE", ANANKE_BINARY_DIR "/bin/ananke-tokenize", 1);
  TemporaryFolder folder;
  const std::string text = folder.write("a.txt", "some text").string(), model = (folder / "m.model").string();
  const auto refused = [&](const std::string& output) {
    return refusal(ErrorKind::resource, [&] {
      run("import", {"--output", output, "--tokenizer", model, "--train-tokenizer", "300", text});
    });
  };
  EXPECT_NAMES(refused((folder / "none/t.h5").string()), (folder / "none").string() + " does not exist; make");
  EXPECT_NAMES(refused(text + "/t.h5"), "a.txt is no folder");
  EXPECT_NAMES(refused(folder.path().string()), "it is a folder; name a file");
  EXPECT_FALSE(std::filesystem::exists(model));
}

TEST(CommandData, AsksForTheTokenizerWhereTheStoreDoesNotKeepIt) {
  TemporaryFolder folder;
  const std::string store = (folder / "t.h5").string();
  TokenStoreWriter writer(store, "sentencepiece", "00ff", -1, 300);
  writer.append(std::vector<std::int32_t>{1, 2});
  writer.end_document();
  writer.finish("test", "", 0);
  EXPECT_NAMES(refusal(ErrorKind::usage, [&] { run("head", {store}); }), "--tokenizer FILE");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { run("head", {store, "--tokenizer", "bytes"}); }), "another tokenizer");
}

TEST(CommandData, RefusesAKeptTokenizerThatIsNone) {
  ::setenv("ANANKE_TOKENIZE", ANANKE_BINARY_DIR "/bin/ananke-tokenize", 1);
  TemporaryFolder folder;
  const std::string store = (folder / "t.h5").string();
  TokenStoreWriter writer(store, "sentencepiece", hash_hex("this is no model"), -1, 300);
  writer.append(std::vector<std::int32_t>{1, 2});
  writer.end_document();
  writer.keep_tokenizer("this is no model");
  writer.finish("test", "", 0);
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { run("head", {store}); }), store);
}

TEST(CommandData, SaysWhatPackingMakesOfStores) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, std::size_t documents, const char* tokenizer) {
    TokenStoreWriter writer(folder / name, tokenizer, "hash", -1, 10);
    for (std::size_t d = 0; d < documents; ++d) {
      writer.append(std::vector<std::int32_t>(d % 10 == 0 ? 41 : 3 + d % 5, 1));
      writer.end_document();
    }
    writer.finish("made", "hash", 0);
    return (folder / name).string();
  };
  const std::string a = write("a.h5", 400, "words"), b = write("b.h5", 100, "words");
  const std::vector<std::string> shape = {"--sequence-length", "32", "--rows-per-step", "4", "--ranks", "2"};
  const auto pack = [&](std::vector<std::string> words) {
    words.insert(words.end(), shape.begin(), shape.end());
    return words;
  };
  // 40 inputs every tenth document; 2 to 6 otherwise.
  const std::string text = output_of("pack", pack({a, "--break-even", "20"}));
  for (const char* word : {"of 32 tokens, in ", "steps of 4 for 2 ranks", "documents are longer than a row", "padding",
                           "99th percentile", "correlation of cost with step", "with the rest", "documents a minute"}) {
    EXPECT_NAMES(text, word);
  }
  EXPECT_NAMES(output_of("pack", pack({a + ":3", b, "--steps", "7"})), "rows             28 of 32 tokens, in 7 steps");
  EXPECT_NAMES(refusal(ErrorKind::config, [&] { run("pack", pack({a + ":0"})); }), "has the weight 0");
  EXPECT_NAMES(refusal(ErrorKind::config,
                       [&] {
                         run("pack", pack({a, write("c.h5", 20, "letters")}));
                       }),
               "of tokenizer letters");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { run("pack", pack({write("empty.h5", 0, "words")})); }), "0 documents");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { run("pack", pack({(folder / "none.h5").string()})); }), "none.h5");
}

}  // namespace
}  // namespace ananke
