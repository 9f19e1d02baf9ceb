// Ranks as threads that save and load a small made-up training state, cut over the ranks like a sharded parameter.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/comm/local_rendezvous.h"
#include "tests/patience.h"

namespace ananke {

// One parameter's pieces over `ranks`: equal ranges of `range` elements, the last ones shorter or empty.
struct TestTensor {
  std::string parameter;
  std::string state;
  Shape shape;
};

inline std::vector<TestTensor> test_tensors() {
  return {{"model.embed_tokens.weight", "weight", {31, 7}},
          {"model.embed_tokens.weight", "exp_avg", {31, 7}},
          {"model.layers.0.mlp.experts.1.up_proj.weight", "weight", {16, 5}},
          {"model.norm.weight", "weight", {3}},
          {"model.norm.weight", "exp_avg_sq", {3}}};
}

// What element i of a tensor is at a step: exact in f32, different for every tensor, step and element.
inline float test_value(const TestTensor& tensor, std::uint64_t step, std::int64_t i) {
  return static_cast<float>(tensor.parameter.size() * 10 + tensor.state.size()) + static_cast<float>(step) * 4096.0f +
         static_cast<float>(i) / 256.0f;
}

// A rank's part of the state: rank r of n owns elements [r * ceil(size / n), ...) of every tensor.
struct RankState {
  std::vector<std::vector<float>> values;
  std::vector<StateTarget> targets;

  RankState(const std::vector<TestTensor>& tensors, int rank, int ranks) {
    for (const TestTensor& tensor : tensors) {
      const std::int64_t size = tensor.shape.elements();
      const std::int64_t range = (size + ranks - 1) / ranks;
      const std::int64_t begin = std::min(size, range * rank);
      const std::int64_t count = std::min(size, begin + range) - begin;
      if (count == 0) continue;
      values.emplace_back(static_cast<std::size_t>(count));
      targets.push_back({tensor.parameter, tensor.state, tensor.shape, begin, count, values.back().data()});
    }
  }
  static const TestTensor tensor_of(const StateTarget& target) {
    return {target.parameter, target.state, target.shape};
  }
  void fill(std::uint64_t step) {
    for (const StateTarget& t : targets) {
      for (std::int64_t i = 0; i < t.count; ++i) t.data[i] = test_value(tensor_of(t), step, t.begin + i);
    }
  }
  // Elements that are not those of the step.
  int wrong(std::uint64_t step) const {
    int count = 0;
    for (const StateTarget& t : targets) {
      for (std::int64_t i = 0; i < t.count; ++i) count += t.data[i] != test_value(tensor_of(t), step, t.begin + i);
    }
    return count;
  }
  std::vector<StateFragment> fragments() const {
    std::vector<StateFragment> result;
    for (const StateTarget& t : targets) result.push_back({t.parameter, t.state, t.shape, t.begin, t.count, t.data});
    return result;
  }
};

// Runs `body(rank, rendezvous)` as one thread per rank; what each threw, as "kind: message" (empty: nothing).
template <class Body>
std::vector<std::string> as_ranks(int ranks, Body body) {
  auto world = LocalWorld::create(ranks, test_patience);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, *world->join(rank));
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = fmt::format("{}: {}", name_of(error.kind()), error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

inline Job test_job() {
  Job job;
  job.set_name("made up");
  return job;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    run_dir =
        std::filesystem::temp_directory_path() /
        fmt::format("ananke-checkpoint-{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
    std::filesystem::remove_all(run_dir);
  }
  void TearDown() override { std::filesystem::remove_all(run_dir); }

  std::filesystem::path step_folder(std::uint64_t step) const {
    return checkpoints_folder(run_dir) / step_folder_name(step);
  }

  std::vector<std::string> save(std::uint64_t step, int ranks, int keep_last = 0) const {
    return as_ranks(ranks, [&](int rank, Rendezvous& rendezvous) {
      RankState state(test_tensors(), rank, ranks);
      state.fill(step);
      Checkpoints(run_dir, rendezvous)
          .save({step, step * 10, step - 1, fmt::format("row {}", step)}, test_job(), state.fragments(), keep_last);
    });
  }

  // Every rank loads its part; says "step N" or "nothing" and how many elements are wrong, or what was thrown.
  std::vector<std::string> load(int ranks, const ResumeCheck& check = {}) const {
    std::vector<std::string> results(static_cast<std::size_t>(ranks));
    const auto errors = as_ranks(ranks, [&](int rank, Rendezvous& rendezvous) {
      RankState state(test_tensors(), rank, ranks);
      const auto loaded = Checkpoints(run_dir, rendezvous).load_newest(state.targets, check);
      std::string& result = results[static_cast<std::size_t>(rank)];
      result = loaded ? fmt::format("step {}", loaded->progress.step) : "nothing";
      if (!loaded) return;
      if (const int wrong = state.wrong(loaded->progress.step)) result += fmt::format(", {} wrong", wrong);
      if (loaded->progress.total_valid_tokens != loaded->progress.step * 10 ||
          loaded->progress.optimizer_steps != loaded->progress.step - 1 || loaded->job->name() != "made up" ||
          loaded->progress.batches_position != fmt::format("row {}", loaded->progress.step)) {
        result += ", wrong progress";
      }
      for (const auto& line : loaded->passed_over) result += "\n" + line;
    });
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!errors[i].empty()) results[i] = errors[i];
    }
    return results;
  }

  std::filesystem::path run_dir;
};

inline std::vector<std::string> all_of(int ranks, const std::string& text) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), text);
}

}  // namespace ananke
