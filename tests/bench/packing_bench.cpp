// What packing makes of documents of log-normal lengths, against the same documents one after another.
//   build/tests/packing_bench [case]
// One line a case: padding, worst rank / mean of a step's attention cost (mean and 99th percentile over steps) of
// sequential and of packed rows, the same weighed against the rest of the model, correlation of a step's cost with its
// number, documents a minute on one thread, memory. Exits with 1 where a bound below does not hold.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/data/packed_order.h"
#include "runtime/data/packing_costs.h"
#include "runtime/data/token_store.h"

namespace ananke {
namespace {

// Lengths are a pure function of (seed, document): an index larger than memory, in none.
class LogNormalDocuments final : public DocumentSource {
 public:
  // `share` of the documents have `long_length` tokens or more.
  LogNormalDocuments(std::uint64_t documents, double median, double long_length, double share_quantile)
      : documents_(documents),
        mu_(std::log(median)),
        sigma_((std::log(long_length) - mu_) / share_quantile),
        key_(7, "bench/lengths") {}
  std::string name() const override { return "documents of log-normal lengths"; }
  std::string identity() const override { return fmt::format("log-normal:{}:{}:{}", documents_, mu_, sigma_); }
  std::uint64_t documents() const noexcept override { return documents_; }
  std::uint64_t length(std::uint64_t document) const override {
    // Box and Muller.
    const double radius = std::sqrt(-2 * std::log(key_.uniform(2 * document)));
    const double z = radius * std::cos(2 * std::numbers::pi * key_.uniform(2 * document + 1));
    return 2 + static_cast<std::uint64_t>(std::exp(mu_ + sigma_ * z));
  }
  std::uint64_t targets() const override {  // expected, without a walk over all
    return static_cast<std::uint64_t>(static_cast<double>(documents_) * (std::exp(mu_ + sigma_ * sigma_ / 2) + 1));
  }
  void read(std::uint64_t, std::uint64_t, std::span<std::int32_t>) const override {}

 private:
  std::uint64_t documents_;
  double mu_, sigma_;
  RandomKey key_;
};

struct Case {
  const char* name;
  std::uint64_t documents;
  double median;
  std::int64_t row_length, ranks, rows_per_step;
  std::uint64_t steps;
  bool stored = false;  // in a token store, so that reading its index counts
};

constexpr double quantile_99 = 2.3263478740408408;  // of the standard normal: 1% of documents lie above
// 64 heads of 128, hidden size 6,144, 8 KV heads, 8 of 384 experts of width 1,792: multiplications of a token in a
// layer's products over those of attention for each token of its document, causal.
constexpr double break_even =
    (6144.0 * (2 * 8192 + 2 * 1024) + 8 * 3 * 6144.0 * 1792 + 6144.0 * 384) * 2 / (2 * 8192.0);

constexpr Case cases[] = {
    {"median 1,000", 4'000'000, 1000, 65536, 384, 384, 320},
    {"median 500", 4'000'000, 500, 65536, 384, 384, 192},
    {"median 2,000", 4'000'000, 2000, 65536, 384, 384, 320},
    {"two rows a rank", 4'000'000, 1000, 65536, 384, 768, 192},
    {"1e9 documents", 1'000'000'000, 1000, 65536, 384, 384, 192},
    {"rows of 4,096", 4'000'000, 1000, 4096, 64, 512, 512},
    {"a token store", 2'000'000, 20, 2048, 64, 256, 320, true},
};

// 1% have 32 times the median or more, as with a median of 1,000 in the other cases.
double long_length(const Case& c) { return c.stored ? 32.768 * c.median : 32768; }

// A store in a file without a name, once it is open.
std::unique_ptr<DocumentSource> stored(const DocumentSource& documents) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("packing-{}.h5", getpid());
  TokenStoreWriter writer(path, "none", "none", -1, 2);
  std::vector<std::int32_t> tokens;
  for (std::uint64_t document = 0; document < documents.documents(); ++document) {
    tokens.assign(documents.length(document), 0);
    writer.append(tokens);
    writer.end_document();
  }
  writer.finish("made", "none", 0);
  std::unique_ptr<DocumentSource> store = open_token_store(path, 2);
  std::filesystem::remove(path);
  return store;
}

std::unique_ptr<DocumentSource> documents_of(const Case& c) {
  auto made = std::make_unique<LogNormalDocuments>(c.documents, c.median, long_length(c), quantile_99);
  return c.stored ? stored(*made) : std::move(made);
}

double megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

StepCosts::Spread sequential(const Case& c) {
  const LogNormalDocuments documents(c.documents, c.median, long_length(c), quantile_99);
  DocumentPieces pieces(documents, 1, "source 0", static_cast<std::uint32_t>(c.row_length));
  SequentialRows rows(static_cast<std::uint32_t>(c.row_length));
  StepCosts costs(c.rows_per_step, c.ranks, static_cast<double>(c.row_length));
  for (std::uint64_t dealt = 0; dealt < c.steps * static_cast<std::uint64_t>(c.rows_per_step); pieces.advance()) {
    rows.add(pieces.current(), [&](std::uint64_t squares) {
      costs.add_row(squares);
      ++dealt;
    });
  }
  return costs.spread();
}

bool run(const Case& c) {
  const StepCosts::Spread before = sequential(c);
  std::vector<PackingSource> sources;
  sources.push_back({documents_of(c), 1});
  const auto begin = std::chrono::steady_clock::now();
  PackedOrder order(std::move(sources), {.row_length = c.row_length, .rows_per_step = c.rows_per_step, .seed = 1});
  StepCosts attention(c.rows_per_step, c.ranks, static_cast<double>(c.row_length));
  StepCosts all(c.rows_per_step, c.ranks, static_cast<double>(c.row_length), break_even);
  std::uint64_t used = 0, rows = c.steps * static_cast<std::uint64_t>(c.rows_per_step), documents = 0, splits = 0;
  for (std::uint64_t i = 0; i < rows; ++i) {
    const PackedRow& row = order.next();
    attention.add_row(row.squares(order.row_length()));
    all.add_row(row.squares(order.row_length()));
    used += row.used;
    for (const Piece& piece : row.pieces) (piece.begin == 0 ? documents : splits) += 1;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double padding = 1 - static_cast<double>(used) / static_cast<double>(rows * order.row_length());
  const StepCosts::Spread after = attention.spread(), weighed = all.spread();
  const double rate = static_cast<double>(documents) / seconds * 60;
  fmt::print(
      "{:<16} {:>6} {:>4} {:>4} {:>9} {:>7} {:>8.4f}% {:>6.2f} {:>6.2f} {:>7.4f} {:>7.4f} {:>6.2f}x {:>7.4f} "
      "{:>7.4f} {:>7.3f} {:>6.1f} M {:>6.0f} MiB\n",
      c.name, c.row_length, c.ranks, after.steps, documents, splits, padding * 100, before.mean, before.p99, after.mean,
      after.p99, before.mean / after.mean, weighed.mean, weighed.p99, after.correlation, rate / 1e6, megabytes());
  std::fflush(stdout);
  return after.mean <= 1.10 && padding <= 0.005 && rate >= 5e6 && megabytes() < 512;
}

}  // namespace
}  // namespace ananke

int main(int argc, char** argv) {
  fmt::print("{:<16} {:>6} {:>4} {:>4} {:>9} {:>7} {:>9} {:>13} {:>15} {:>7} {:>15} {:>7} {:>8} {:>10}\n", "documents",
             "row", "rank", "step", "documents", "splits", "padding", "sequential", "packed   p99", "ratio",
             "with rest  p99", "corr.", "docs/min", "memory");
  bool good = true;
  for (const ananke::Case& c : ananke::cases) {
    if (argc > 1 && std::strstr(c.name, argv[1]) == nullptr) continue;
    good = ananke::run(c) && good;
  }
  return good ? 0 : 1;
}
