#include "runtime/data/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/hash.h"
#include "runtime/data/tokenize_process.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Texts = std::vector<std::string_view>;

const std::filesystem::path program = std::filesystem::path(ANANKE_BINARY_DIR) / "bin/ananke-tokenize";

// A tokenizer as wrong as the test needs it.
class Impostor {
 public:
  explicit Impostor(const std::string& script) : path_(folder_.write("tokenizer", "#!/bin/sh\n" + script)) {
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  std::string refused(std::chrono::seconds patience = std::chrono::seconds(20)) const {
    return refusal(ErrorKind::data, [&] {
      TokenizeProcess process(path_, {}, patience);
      std::vector<std::int32_t> tokens;
      std::vector<std::size_t> ends;
      process.encode(Texts{"abc"}, tokens, ends);
    });
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_;
};

const std::string header = "echo 'ananke-tokenize 1 fake vocabulary=10 eos=2 hash=00'\n";

TEST(TokenizeProcess, ReportsOneThatCannotStartOrDies) {
  EXPECT_NAMES(refusal(ErrorKind::resource, [] { TokenizeProcess process("/no/such/tokenizer", {}); }), "/no/such/");
  EXPECT_NAMES(Impostor("echo one >&2; echo two >&2; exit 3").refused(), "exit code 3; its last words:\n  one\ntwo");
  EXPECT_NAMES(Impostor(header + "exit 0").refused(), "ended with exit code 0; it said nothing");
  EXPECT_NAMES(Impostor(header + "head -c 1 > /dev/null; kill -9 $$").refused(), "killed by signal 9");
  const std::string flood = "i=0; while [ $i -lt 900 ]; do echo line $i >&2; i=$((i+1)); done; exit 1";
  const std::string message = Impostor(flood).refused();
  EXPECT_NAMES(message, "line 899");
  EXPECT_LT(message.size(), 2500U);
}

TEST(TokenizeProcess, ReportsNonsense) {
  for (const char* line :
       {"hello", "ananke-tokenize 2 fake vocabulary=10 eos=2 hash=00",
        "ananke-tokenize 1 fake vocabulary=0 eos=-1 hash=00", "ananke-tokenize 1 fake vocabulary=10 eos=10 hash=00",
        "ananke-tokenize 1 fake vocabulary=99999999999 eos=1 hash=00",
        "ananke-tokenize 1 fake vocabulary=10 eos=2 hash=00 more"}) {
    EXPECT_NAMES(Impostor(fmt::format("echo '{}'; exec sleep 5", line)).refused(), "began with nonsense: \"");
  }
  EXPECT_NAMES(Impostor("head -c 1000 /dev/zero; exec sleep 5").refused(), "began with nonsense");
  const auto answers = [](const std::string& octets) {
    return Impostor(header + "head -c 7 > /dev/null; printf '" + octets + "'; exec sleep 5").refused();
  };
  EXPECT_NAMES(answers("\\377\\377\\377\\377"), "answered with 4294967295 units where 256 at most can be");
  EXPECT_NAMES(answers("\\001\\0\\0\\0\\012\\0\\0\\0"), "answered with token 10, of a vocabulary of 10");
  EXPECT_NAMES(answers("\\001\\0\\0\\0\\377\\377\\377\\377"), "answered with token -1");
  EXPECT_NAMES(answers("\\0\\0\\0\\0\\0"), "was not asked");
}

TEST(TokenizeProcess, ReportsOneThatDoesNotAnswer) {
  EXPECT_NAMES(Impostor("exec sleep 30").refused(std::chrono::seconds(1)), "has not answered for 1 s");
}

TEST(Tokenizer, RefusesWhatIsNoModel) {
  TemporaryFolder folder;
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { make_tokenizer("byte", program); }), "no tokenizer 'byte'");
  const std::string text = folder.write("text.model", "not a model").string();
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { make_tokenizer(text, program); }), "is not a usable SentencePiece model");
}

TEST(Tokenizer, ProgramAgreesWithUsAboutBytes) {
  const auto bytes = make_tokenizer("bytes", program);
  TokenizeProcess process(program, {"--bytes"});
  EXPECT_EQ(process.info().hash, bytes->info().hash);
  EXPECT_EQ(process.info().eos_id, 256);
  std::string all;
  for (int i = 0; i < 300000; ++i) all += static_cast<char>(i);
  std::vector<std::int32_t> tokens, ours;
  std::vector<std::size_t> ends, our_ends;
  process.encode(Texts{"", all, "ab"}, tokens, ends);
  bytes->encode(Texts{"", all, "ab"}, ours, our_ends);
  EXPECT_EQ(tokens, ours);
  EXPECT_EQ(ends, our_ends);
  TokenizeProcess decoder(program, {"--bytes", "--decode"});
  EXPECT_EQ(decoder.decode(tokens), all + "ab");
  EXPECT_EQ(bytes->decode(tokens), all + "ab");
}

TEST(Tokenizer, SentencePieceRestoresEveryTextToTheByte) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i)
    text += fmt::format("line {} of  text: d\xC3\xA9j\xC3\xA0 vu\n\tindented {}\n", i, i * 7);
  TokenizeProcess trainer(program, {"--train", "300"});
  trainer.feed(text);
  const std::string model = trainer.train();
  EXPECT_EQ(trainer.info().vocabulary_size, 300U);
  EXPECT_EQ(trainer.info().hash, hash_hex(model));
  const auto tokenizer = make_tokenizer(folder.write("m.model", model).string(), program);
  EXPECT_EQ(tokenizer->info().hash, hash_hex(model));
  EXPECT_EQ(tokenizer->info().eos_id, 2);
  const std::string strange = " \xF0\x9F\x98\x80 unseen \xE4\xB8\xAD  ";
  const std::string no_place_to_cut(50000, 'x');
  for (const std::string& one : {text, strange, no_place_to_cut, std::string()}) {
    std::vector<std::int32_t> tokens;
    std::vector<std::size_t> ends;
    tokenizer->encode(Texts{one}, tokens, ends);
    EXPECT_EQ(tokenizer->decode(tokens), one);
    if (one == text) {
      EXPECT_LT(tokens.size(), text.size());
    }
  }
}

TEST(Tokenizer, TrainingSaysWhatItCannotDo) {
  const auto refused = [](const std::string& count, std::string_view text) {
    return refusal(ErrorKind::data, [&] {
      TokenizeProcess trainer(program, {"--train", count});
      if (!text.empty()) trainer.feed(text);
      trainer.train();
    });
  };
  EXPECT_NAMES(refused("400", ""), "no text to train");
  EXPECT_NAMES(refused("40000", "two words"), "a smaller vocabulary or more text");
  EXPECT_NAMES(refused("100", "two words"), "260 tokens or more");
}

}  // namespace
}  // namespace ananke
