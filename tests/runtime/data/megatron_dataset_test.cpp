#include "runtime/data/megatron_dataset.h"

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/base/random.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Documents = std::vector<std::vector<std::int32_t>>;

// The public format, laid out by hand (Megatron-LM, megatron/core/datasets/indexed_dataset.py, _IndexWriter).
template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t type = 4;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> places;
  std::vector<std::int64_t> documents;
  std::int64_t claimed_sequences = -1;
  std::int64_t claimed_documents = -1;

  std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, type);
    put(out, claimed_sequences < 0 ? static_cast<std::uint64_t>(lengths.size())
                                   : static_cast<std::uint64_t>(claimed_sequences));
    put(out, claimed_documents < 0 ? static_cast<std::uint64_t>(documents.size())
                                   : static_cast<std::uint64_t>(claimed_documents));
    for (const auto length : lengths) put(out, length);
    for (const auto place : places) put(out, place);
    for (const auto document : documents) put(out, document);
    return out;
  }
};

// Three documents of one, none and two sequences.
const std::vector<std::int32_t> tokens = {5, 6, 7, 8, 9, 10};
const Documents expected = {{5, 6, 7}, {}, {8, 9, 10}};
Index good_index(std::uint8_t type, std::int64_t width) {
  Index index;
  index.type = type;
  index.lengths = {3, 1, 2};
  index.places = {0, 3 * width, 4 * width};
  index.documents = {0, 1, 1, 3};
  return index;
}

template <class T>
std::string data_of() {
  std::string out;
  for (const std::int32_t token : tokens) put(out, static_cast<T>(token));
  return out;
}

Documents read_all(const std::filesystem::path& path, std::size_t step = 2, std::uint64_t vocabulary = 100) {
  MegatronDataset dataset(path);
  Documents documents;
  std::vector<std::int32_t> out(step);
  std::vector<std::int32_t> open;
  MegatronDataset::Part part;
  while (dataset.next(vocabulary, out, part)) {
    open.insert(open.end(), out.begin(), out.begin() + static_cast<std::ptrdiff_t>(part.count));
    if (part.ends_document) documents.push_back(std::exchange(open, {}));
  }
  EXPECT_EQ(documents.size(), dataset.documents());
  return documents;
}

class MegatronFiles : public testing::Test {
 protected:
  std::string refused(const Index& index) {
    folder_.write("x.bin", data_of<std::int32_t>());
    return refusal(ErrorKind::data, [&] { read_all(folder_.write("x.idx", index.bytes())); });
  }
  TemporaryFolder folder_;
};

TEST_F(MegatronFiles, RefusesGarbage) {
  Index bad = good_index(4, 4);
  bad.magic[0] = 'X';
  EXPECT_NAMES(refused(bad), "does not begin with MMIDIDX");
  bad = good_index(4, 4);
  bad.version = 2;
  EXPECT_NAMES(refused(bad), "version is 2");
  for (const int type : {0, 6, 7, 9, 255}) {
    bad = good_index(static_cast<std::uint8_t>(type), 4);
    EXPECT_NAMES(refused(bad), fmt::format("type {};", type));
  }
  for (const std::int64_t count : {std::int64_t{2}, std::int64_t{4}, std::numeric_limits<std::int64_t>::max()}) {
    bad = good_index(4, 4);
    bad.claimed_sequences = count;
    EXPECT_NAMES(refused(bad), "sequences");
    bad = good_index(4, 4);
    bad.claimed_documents = count == 4 ? 5 : count == 2 ? 3 : count;
    EXPECT_NAMES(refused(bad), "offsets of documents");
  }
  bad = good_index(4, 4);
  bad.lengths[1] = -1;
  EXPECT_NAMES(refused(bad), "sequence 1 has -1 tokens");
  bad = good_index(4, 4);
  bad.places[2] = 17;
  EXPECT_NAMES(refused(bad), "sequence 2 has 2 tokens of 4 bytes at byte 17");
  bad.places[2] = std::numeric_limits<std::int64_t>::max();
  EXPECT_NAMES(refused(bad), "has 24 bytes");
  for (const std::vector<std::int64_t>& documents :
       {std::vector<std::int64_t>{1, 1, 3}, {0, 2, 1, 3}, {0, 1, 4}, {0, 1, 2}, {0, -1, 3}, {0}, {}}) {
    bad = good_index(4, 4);
    bad.documents = documents;
    EXPECT_NAMES(refused(bad), "is not a usable Megatron index");
  }
  const std::string whole = good_index(4, 4).bytes();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{9}, std::size_t{33}, whole.size() - 1}) {
    EXPECT_NAMES(refusal(ErrorKind::data, [&] { read_all(folder_.write("x.idx", whole.substr(0, bytes))); }), "x.idx");
  }
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { read_all(folder_.write("x.idx", whole + "abc")); }), "modes");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { read_all(folder_.write("x.idx", whole + "abcd")); }), "4 of its");
  folder_.write("x.idx", whole);
  std::filesystem::remove(folder_ / "x.bin");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { read_all(folder_ / "x.idx"); }), "x.bin");
}

TEST_F(MegatronFiles, RefusesTokensOutsideTheVocabulary) {
  folder_.write("x.bin", data_of<std::int32_t>());
  folder_.write("x.idx", good_index(4, 4).bytes());
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { read_all(folder_ / "x.idx", 2, 9); }), "document 2 has token 9");
  std::string negative = data_of<std::int32_t>();
  std::memset(negative.data(), 0xFF, 4);
  folder_.write("x.bin", negative);
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { read_all(folder_ / "x.idx"); }), "document 0 has token -1");
}

TEST_F(MegatronFiles, ReadsEveryWholeType) {
  const auto reads = [&](std::uint8_t type, std::int64_t width, const std::string& data) {
    folder_.write("x.bin", data);
    folder_.write("x.idx", good_index(type, width).bytes());
    for (const std::size_t step : {1, 2, 100}) {
      EXPECT_EQ(read_all(folder_ / "x.idx", step), expected) << int{type};
    }
    EXPECT_EQ(read_all(folder_ / "x.bin"), expected);
    EXPECT_EQ(read_all(folder_ / "x"), expected);
  };
  reads(1, 1, data_of<std::uint8_t>());
  reads(2, 1, data_of<std::int8_t>());
  reads(3, 2, data_of<std::int16_t>());
  reads(4, 4, data_of<std::int32_t>());
  reads(5, 8, data_of<std::int64_t>());
  reads(8, 2, data_of<std::uint16_t>());
}

// tests/golden/make_megatron.py says what stands in them.
TEST_F(MegatronFiles, ReadsWhatMegatronWrote) {
  const std::vector<std::vector<std::int32_t>> shape = {{5}, {3, 1, 4}, {}, {1}, {0}, {700, 2}, {9}};
  const std::filesystem::path golden = std::filesystem::path(ANANKE_SOURCE_DIR) / "tests/golden/megatron";
  for (const auto& [name, vocabulary] : {std::pair<const char*, std::int32_t>{"vocabulary-50000", 50'000},
                                         {"vocabulary-200000", 200'000},
                                         {"merged", 50'000}}) {
    Documents want;
    for (std::size_t document = 0; document < shape.size(); ++document) {
      want.emplace_back();
      for (std::size_t sequence = 0; sequence < shape[document].size(); ++sequence) {
        for (std::int32_t i = 0; i < shape[document][sequence]; ++i) {
          want.back().push_back(static_cast<std::int32_t>(document * 7919 + sequence * 131) + i * i);
          want.back().back() %= vocabulary;
        }
      }
    }
    EXPECT_EQ(read_all(golden / name, 64, static_cast<std::uint64_t>(vocabulary)), want) << name;
  }
}

TEST_F(MegatronFiles, ReadsIndexesLongerThanItsBuffers) {
  Index index;
  index.type = 8;
  std::string data;
  Documents documents;
  const RandomKey key(7, "lengths");
  index.documents = {0};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    index.places.push_back(static_cast<std::int64_t>(data.size()));
    index.lengths.push_back(static_cast<std::int32_t>(key.below(i, 4)));
    documents.emplace_back();
    for (std::int32_t j = 0; j < index.lengths.back(); ++j) {
      documents.back().push_back(static_cast<std::int32_t>(key.below(i * 7 + static_cast<std::uint64_t>(j), 60000)));
      put(data, static_cast<std::uint16_t>(documents.back().back()));
    }
    index.documents.push_back(static_cast<std::int64_t>(i + 1));
  }
  folder_.write("x.bin", data);
  folder_.write("x.idx", index.bytes());
  EXPECT_EQ(read_all(folder_ / "x", 100, 60000), documents);
}

TEST_F(MegatronFiles, SurvivesRandomDamage) {
  folder_.write("x.bin", data_of<std::int32_t>());
  const std::string whole = good_index(4, 4).bytes();
  const RandomKey key(3, "damage");
  for (std::uint64_t trial = 0; trial < 3000; ++trial) {
    std::string bad = whole;
    for (std::uint64_t change = 0; change <= trial % 3; ++change) {
      bad[key.below(trial * 8 + change, bad.size())] = static_cast<char>(key.bits(trial * 8 + change + 4));
    }
    try {
      read_all(folder_.write("x.idx", bad));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
    }
  }
}

}  // namespace
}  // namespace ananke
