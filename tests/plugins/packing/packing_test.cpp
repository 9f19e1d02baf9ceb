#include <gtest/gtest.h>

#include <map>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/packing/packing.pb.h"
#include "runtime/base/random.h"
#include "runtime/data/token_store.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/batches.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

extern "C" const ananke::PluginDescriptorV1* ananke_plugin_v1();

namespace ananke {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Made {
  std::unique_ptr<Batches> batches;
  std::string refusal;
};

std::string write_store(const std::filesystem::path& path, const std::vector<Tokens>& documents,
                        const std::string& tokenizer = "words", std::uint64_t vocabulary = 100'000) {
  TokenStoreWriter writer(path, tokenizer, "hash of " + tokenizer, -1, vocabulary);
  for (const Tokens& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish("made", "hash", 0);
  return path.string();
}

class Packing : public ::testing::Test {
 protected:
  // Every token occurs once, so that it names its place.
  std::vector<Tokens> random_documents(std::size_t count, std::uint64_t longest, std::int32_t first = 0) const {
    const RandomKey key(3, "documents");
    std::vector<Tokens> documents(count);
    for (std::size_t d = 0; d < count; ++d) {
      documents[d].resize(key.below(d, longest + 1));
      for (std::int32_t& token : documents[d]) token = first++;
    }
    return documents;
  }
  Job job(const std::string& store, std::uint32_t row_length, std::uint32_t rows_per_step) const {
    Job job;
    job.mutable_model()->set_vocab_size(100'000);
    job.mutable_training()->set_sequence_length(row_length);
    job.mutable_training()->set_rows_per_step(rows_per_step);
    job.mutable_training()->set_seed(11);
    job.mutable_data()->set_tokens(store);
    return job;
  }
  // The job outlives what is made of it here, as in a run.
  Made make(const Job& job, const plugin::Packing& config = {}, int ranks = 1, int rank = 0) {
    MeshShape mesh;
    mesh.shard = ranks;
    const RoleContext context{job, site_, mesh, rank};
    const std::string bytes = config.SerializeAsString();
    void* object = nullptr;
    char message[1024] = "";
    const int code = ananke_plugin_v1()->create(&context, bytes.data(), bytes.size(), &object, message, sizeof message);
    if (code != 0) return {nullptr, fmt::format("{}: {}", name_of(static_cast<ErrorKind>(code)), message)};
    return {std::unique_ptr<Batches>(static_cast<Batches*>(object)), ""};
  }

  TemporaryFolder folder_;
  Site site_;
};

TEST_F(Packing, RefusesStoresThatCannotBeUsed) {
  const std::string good = write_store(folder_ / "good.h5", {{1, 2, 3}});
  EXPECT_NAMES(make(job((folder_ / "none.h5").string(), 8, 2)).refusal, "none.h5");
  const std::string empty = write_store(folder_ / "empty.h5", {});
  EXPECT_NAMES(make(job(empty, 8, 2)).refusal, "data: token store " + empty + " has 0 documents");
  const std::string single = write_store(folder_ / "single.h5", {{1}, {2}});
  EXPECT_NAMES(make(job(single, 8, 2)).refusal, "none of two tokens or more");

  const auto mixed = [&](const std::string& store, double weight = 1) {
    plugin::Packing config;
    config.add_mix()->set_tokens(store);
    config.mutable_mix(0)->set_weight(weight);
    return make(job(good, 8, 2), config).refusal;
  };
  EXPECT_EQ(mixed(good), "");
  EXPECT_NAMES(mixed((folder_ / "none.h5").string()), "none.h5");
  EXPECT_NAMES(mixed(empty), "has 0 documents");
  const std::string large = write_store(folder_ / "large.h5", {{1, 2}}, "words", 200'000);
  EXPECT_NAMES(mixed(large), "model.vocab_size is 100000");
  EXPECT_NAMES(mixed(write_store(folder_ / "other.h5", {{1, 2}}, "letters")), "of tokenizer letters");
  EXPECT_NAMES(mixed(good, 0), "has the weight 0");
}

TEST_F(Packing, KeepsDocumentsApartAndMasksPadding) {
  const Job two = job(write_store(folder_ / "two.h5", {{1, 2, 3, 0}, {4, 5, 0}}), 8, 1);
  const Made made = make(two);
  ASSERT_TRUE(made.batches) << made.refusal;
  Rows rows;
  ASSERT_TRUE(made.batches->next(1, rows));
  ASSERT_EQ(rows.rows, 1);
  EXPECT_EQ(rows.row_length, 8);
  EXPECT_EQ(rows.valid_targets, 8 - 1) << "3 + 2 of the first epoch, 2 of the second; one of padding";
  const bool long_first = rows.tokens[0] == 1;
  EXPECT_EQ(rows.positions, long_first ? (Tokens{0, 1, 2, 0, 1, 0, 1, 0}) : (Tokens{0, 1, 0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(rows.tokens, long_first ? (Tokens{1, 2, 3, 4, 5, 4, 5, 0}) : (Tokens{4, 5, 1, 2, 3, 4, 5, 0}));
  EXPECT_EQ(rows.targets, long_first ? (Tokens{2, 3, 0, 5, 0, 5, 0, -1}) : (Tokens{5, 0, 2, 3, 0, 5, 0, -1}));
  EXPECT_EQ(rows.segments, (std::vector<Tokens>{long_first ? Tokens{0, 3, 5, 7} : Tokens{0, 2, 5, 7}}));
}

// Each row's segments against the documents that their tokens name.
void check_rows(const Rows& rows, const std::map<std::int32_t, std::int32_t>& next, std::uint32_t row_length,
                std::map<std::int32_t, int>& used) {
  std::int64_t valid = 0;
  for (std::size_t r = 0; r < rows.segments.size(); ++r) {
    const std::vector<std::int32_t>& begins = rows.segments[r];
    for (std::size_t s = 0; s < begins.size(); ++s) {
      const auto end = static_cast<std::size_t>(s + 1 < begins.size() ? begins[s + 1] : static_cast<int>(row_length));
      const std::size_t first = r * row_length + static_cast<std::size_t>(begins[s]);
      const bool padding = rows.targets[first] == -1;
      EXPECT_TRUE(!padding || s + 1 == begins.size()) << "padding stands at the end";
      for (std::size_t i = first; i < r * row_length + end; ++i) {
        EXPECT_EQ(rows.positions[i], static_cast<std::int32_t>(i - first));
        if (padding) {
          EXPECT_EQ(rows.targets[i], -1);
          EXPECT_EQ(rows.tokens[i], 0);
          continue;
        }
        ++valid;
        ++used[rows.tokens[i]];
        EXPECT_EQ(rows.targets[i], next.at(rows.tokens[i]));
        EXPECT_TRUE(i == first || rows.tokens[i] == rows.targets[i - 1]) << "a segment is of one document";
      }
    }
  }
  EXPECT_EQ(rows.valid_targets, valid);
}

TEST_F(Packing, TakesEveryTokenOnceWithItsSuccessorForTarget) {
  const std::vector<Tokens> documents = random_documents(400, 70);
  std::map<std::int32_t, std::int32_t> next;  // of every token that has one
  for (const Tokens& document : documents) {
    for (std::size_t i = 1; i < document.size(); ++i) next[document[i - 1]] = document[i];
  }
  const Job all = job(write_store(folder_ / "all.h5", documents), 32, 4);
  const Made made = make(all);
  ASSERT_TRUE(made.batches) << made.refusal;
  std::map<std::int32_t, int> used;
  Rows rows;
  // Two epochs and a window at most: what the second of them has left over is of a third.
  for (std::size_t inputs = 0; inputs < 2 * next.size(); inputs += static_cast<std::size_t>(rows.valid_targets)) {
    ASSERT_TRUE(made.batches->next(4, rows));
    check_rows(rows, next, 32, used);
  }
  EXPECT_EQ(used.size(), next.size()) << "every token with a successor is an input";
  for (const auto& [token, times] : used) ASSERT_TRUE(times >= 1 && times <= 3) << token << ": " << times;
}

TEST_F(Packing, DealsTheSameStepsOnEveryMesh) {
  const Job all = job(write_store(folder_ / "all.h5", random_documents(300, 60)), 24, 8);
  const Made one = make(all);
  for (const int ranks : {2, 4, 8}) {
    SCOPED_TRACE(ranks);
    std::vector<Made> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(make(all, {}, ranks, rank));
    const Made straight = make(all);
    for (int step = 0; step < 12; ++step) {
      Rows whole, part;
      straight.batches->next(8, whole);
      for (int rank = 0; rank < ranks; ++rank) {
        parts[static_cast<std::size_t>(rank)].batches->next(8, part);
        ASSERT_EQ(part.rows, 8 / ranks);
        for (std::int64_t row = 0; row < part.rows; ++row) {
          const std::int64_t global = row * ranks + rank;
          EXPECT_TRUE(std::equal(part.tokens.begin() + row * 24, part.tokens.begin() + (row + 1) * 24,
                                 whole.tokens.begin() + global * 24));
          EXPECT_EQ(part.segments[static_cast<std::size_t>(row)], whole.segments[static_cast<std::size_t>(global)]);
        }
        EXPECT_EQ(parts[static_cast<std::size_t>(rank)].batches->position(), straight.batches->position());
      }
    }
  }
}

TEST_F(Packing, GoesOnAfterEveryStepAndASecondTime) {
  const Job all = job(write_store(folder_ / "all.h5", random_documents(300, 60)), 24, 4);
  plugin::Packing config;
  config.set_window_steps(5);
  const Made straight = make(all, config);
  std::vector<Tokens> steps;
  std::vector<std::string> positions;
  Rows rows;
  for (int step = 0; step < 30; ++step) {
    positions.push_back(straight.batches->position());
    straight.batches->next(4, rows);
    steps.push_back(rows.tokens);
  }
  for (std::size_t from = 0; from + 3 < steps.size(); ++from) {
    const Made resumed = make(all, config), second = make(all, config);
    resumed.batches->restore(positions[from]);
    resumed.batches->next(4, rows);
    EXPECT_EQ(rows.tokens, steps[from]);
    second.batches->restore(resumed.batches->position());
    for (std::size_t step = from + 1; step < from + 3; ++step) {
      second.batches->next(4, rows);
      EXPECT_EQ(rows.tokens, steps[step]);
    }
    EXPECT_EQ(second.batches->position(), positions[from + 3]);
  }
  const std::string before = straight.batches->position();
  EXPECT_ERROR(straight.batches->restore("sequential-1 x 0 0 0 0"), ErrorKind::checkpoint, "not one of packing");
  config.set_window_steps(4);
  EXPECT_ERROR(make(all, config).batches->restore(before), ErrorKind::checkpoint, "other data");
}

TEST_F(Packing, MixesStoresByWeight) {
  const std::vector<Tokens> a = random_documents(600, 50), b = random_documents(300, 50, 50'000);
  Job mixed = job(write_store(folder_ / "a.h5", a), 32, 8);
  plugin::Packing config;
  config.set_weight(1);
  config.add_mix()->set_tokens(write_store(folder_ / "b.h5", b));
  config.mutable_mix(0)->set_weight(2);
  const Made made = make(mixed, config);
  ASSERT_TRUE(made.batches) << made.refusal;
  Rows rows;
  std::int64_t of_b = 0, all = 0;
  for (int step = 0; step < 200; ++step) {
    made.batches->next(8, rows);
    for (std::size_t i = 0; i < rows.targets.size(); ++i) {
      if (rows.targets[i] < 0) continue;
      ++all;
      of_b += rows.tokens[i] >= 50'000 ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(of_b) / static_cast<double>(all), 2.0 / 3, 0.01);
}

}  // namespace
}  // namespace ananke
