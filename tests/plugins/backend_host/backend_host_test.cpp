// The plugin's class: what it makes of its config, and communicators by every transport in one process.
#include "plugins/backend_host/backend_host.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/backend_host/backend_host.pb.h"
#include "runtime/base/error.h"
#include "runtime/comm/local_rendezvous.h"
#include "tests/patience.h"

namespace ananke::testing {
namespace {

using Config = plugin::BackendHost;

struct Setting {
  Job job;
  Site site;
  Config config;
  BackendHost make(int rank, int size) {
    return BackendHost({.job = job, .site = site, .mesh = {1, size}, .rank = rank, .node_ranks = size}, config);
  }
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.what());
  }
  return "";
}

std::string as_ranks(int size, const std::function<void(int, Rendezvous&)>& body) {
  auto world = LocalWorld::create(size, test_patience);
  std::string first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto error = error_of([&] { body(rank, *world->join(rank)); });
      std::lock_guard lock(mutex);
      if (first.empty()) first = error;
    });
  }
  for (auto& thread : threads) thread.join();
  return first;
}

TEST(BackendHostMisuse, NamesAnInterfaceThatIsNotThere) {
  const auto error = as_ranks(2, [](int rank, Rendezvous& rendezvous) {
    Setting setting;
    setting.config.set_transport(Config::GLOO);
    setting.config.set_network_interface("no-such-interface0");
    auto backend = setting.make(rank, 2);
    backend.make_communicator("world", std::vector<int>{0, 1}, rendezvous);
  });
  EXPECT_NE(error.find("config: backend_host cannot listen on network interface 'no-such-interface0'"),
            std::string::npos)
      << error;
}

TEST(BackendHostMisuse, LoopbackIsRefusedBetweenHosts) {
  // What another host would say, put in place of rank 1's words.
  class OtherHost final : public Rendezvous {
   public:
    explicit OtherHost(Rendezvous& real) : real_(real) {}
    int rank() const override { return real_.rank(); }
    int size() const override { return real_.size(); }
    std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob) override {
      if (rank() == 1 && key.ends_with("addresses")) blob = "node7 another-boot net:[1]" + blob.substr(blob.find('\n'));
      return real_.exchange(key, members, blob);
    }

   private:
    Rendezvous& real_;
  };
  const auto error = as_ranks(2, [](int rank, Rendezvous& real) {
    OtherHost rendezvous(real);
    Setting setting;
    setting.config.set_transport(Config::GLOO);
    auto backend = setting.make(rank, 2);
    backend.make_communicator("world", std::vector<int>{0, 1}, rendezvous);
  });
  EXPECT_NE(error.find("config: backend_host: rank 0 on "), std::string::npos) << error;
  EXPECT_NE(error.find("and rank 1 on node7 have no loopback in common; set network_interface"), std::string::npos);
}

TEST(BackendHostMisuse, RefusesGroupsThatCannotBe) {
  auto world = LocalWorld::create(65, std::chrono::seconds(1));
  auto rendezvous = world->join(0);
  Setting setting;
  auto backend = setting.make(0, 65);
  std::vector<int> everyone(65);
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto make = [&](std::vector<int> ranks) {
    return error_of([&] { backend.make_communicator("world", ranks, *rendezvous); });
  };
  EXPECT_NE(make(everyone).find("config: backend_host connects"), std::string::npos) << make(everyone);
  EXPECT_NE(make({1, 2}).find("own included"), std::string::npos);
  EXPECT_NE(make({1, 0}).find("ascending"), std::string::npos);
  EXPECT_NE(make({0, 0}).find("ascending"), std::string::npos);
  EXPECT_NE(make({}).find("own included"), std::string::npos);
}

TEST(BackendHostMisuse, QuotesADurationItCannotRead) {
  Setting setting;
  setting.config.set_communication_delay("soon");
  EXPECT_NE(error_of([&] { setting.make(0, 1); }).find("soon"), std::string::npos);
}

TEST(BackendHost, OffersADeviceAndEveryOperator) {
  Setting setting;
  setting.config.set_threads(3);
  auto backend = setting.make(0, 1);
  EXPECT_TRUE(backend.device().description().starts_with("host, 3 threads, OpenBLAS 0."))
      << backend.device().description();
  const OperatorSet& set = backend.operators();
  EXPECT_TRUE(set.embedding && set.add_rms_norm && set.linear && set.attention && set.router && set.router_balance &&
              set.permute && set.exchange && set.grouped_mlp && set.head_loss && set.elementwise && set.adamw &&
              set.momentum && set.newton_schulz && set.wire);
  EXPECT_EQ(&set, &backend.operators());
}

TEST(BackendHost, SharesTheCoresAmongTheRanksOfTheNode) {
  Setting setting;
  const int all = setting.make(0, 1).threads();
  EXPECT_GE(all, 1);
  EXPECT_EQ(setting.make(0, 2).threads(), std::max(1, all / 2));
  EXPECT_EQ(setting.make(0, 1000).threads(), 1);
}

class Transports : public ::testing::TestWithParam<Config::Transport> {};

TEST_P(Transports, ServeEveryGroupOfAMesh) {
  const auto error = as_ranks(4, [](int rank, Rendezvous& rendezvous) {
    Setting setting;
    setting.config.set_transport(GetParam());
    auto backend = setting.make(rank, 4);
    const int row = rank / 2, column = rank % 2;
    auto world = backend.make_communicator("world", std::vector<int>{0, 1, 2, 3}, rendezvous);
    auto shard = backend.make_communicator("axis", std::vector<int>{2 * row, 2 * row + 1}, rendezvous);
    auto replicate = backend.make_communicator("axis", std::vector<int>{column, column + 2}, rendezvous);
    auto again = backend.make_communicator("axis", std::vector<int>{column, column + 2}, rendezvous);
    auto alone = backend.make_communicator("alone", std::vector<int>{rank}, rendezvous);
    Stream& stream = backend.device().stream(Resource::network);
    std::vector<double> values{1.0 * rank, 2.0 * rank, 4.0 * rank, 8.0 * rank, 16.0 * rank};
    int i = 0;
    for (Communicator* each : {world.get(), shard.get(), replicate.get(), again.get(), alone.get()}) {
      each->all_reduce(stream, view_of(&values[static_cast<std::size_t>(i++)], Shape{1}), Reduction::sum);
    }
    stream.synchronize();
    EXPECT_EQ(values, (std::vector<double>{6, 2.0 * (4 * row + 1), 4.0 * (2 * column + 2), 8.0 * (2 * column + 2),
                                           16.0 * rank}));
  });
  EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(, Transports,
                         ::testing::Values(Config::AUTO, Config::THREADS, Config::SHARED_MEMORY, Config::GLOO),
                         [](const auto& info) { return Config::Transport_Name(info.param); });

}  // namespace
}  // namespace ananke::testing
