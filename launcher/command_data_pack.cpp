// ananke data pack: what plugin packing makes of token stores, before anything is trained on them.
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/data/packed_order.h"
#include "runtime/data/packing_costs.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

constexpr const char* details =
    R"(Packs one epoch (or --steps) as a job with plugin packing does that has these rows, this seed, the first STORE as
data.tokens and the others as `mix`; the same documents one after another, cut where a row ends, stand beside it. Each
step's cost is that of its slowest rank over the mean of all ranks, as the others wait for that one. The cost of a row
is the sum of its squared document lengths (attention, causal), and with --break-even N also N x its length: N is how
long a document is whose attention costs as much as all else does for it. Nothing is written: a run packs again, a
window at a time, which takes less than the reading of its tokens.)";

struct PackRequest {
  std::vector<std::string> stores;
  PackingOptions packing;
  std::int64_t ranks = 1;
  std::uint64_t steps = 0;  // 0: one epoch
  double break_even = 0;
};

struct Packed {
  StepCosts attention, all;
  std::uint64_t used = 0, rows = 0, documents = 0, split = 0, more_pieces = 0;
  double seconds = 0;
};

// "STORE" or "STORE:WEIGHT"; what exists under the whole of it is a store.
std::pair<std::string, double> parse_store(const std::string& text, const CommandOptions& options) {
  std::error_code problem;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text, problem)) return {text, 1.0};
  double weight = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, weight);
  if (error != std::errc() || rest != end || colon == 0) {
    options.misused(fmt::format("{}: there is no such file, and no number follows the last ':'", text));
  }
  return {text.substr(0, colon), weight};
}

std::vector<PackingSource> open(const PackRequest& request, const CommandOptions& options) {
  std::vector<PackingSource> sources;
  for (const std::string& text : request.stores) {
    const auto [path, weight] = parse_store(text, options);
    sources.push_back({open_token_store(path, std::uint64_t{1} << 31), weight});
  }
  return sources;
}

void check(const PackRequest& request, const CommandOptions& options) {
  const PackingOptions& packing = request.packing;
  const auto require = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) options.misused(fmt::format("--{} is {}, it must be 1 to {}", name, value, most));
  };
  if (request.stores.empty()) options.misused("no STORE is named");
  require("sequence-length", packing.row_length, 16777216);
  require("ranks", request.ranks, 1 << 24);
  require("rows-per-step", packing.rows_per_step, most_step_rows);
  require("window-steps", static_cast<std::int64_t>(packing.window_steps), 65536);
  require("open-rows", static_cast<std::int64_t>(packing.open_rows), 65536);
  if (packing.rows_per_step % request.ranks != 0) {
    options.misused(fmt::format("--rows-per-step is {}, no multiple of the {} ranks that share its rows",
                                packing.rows_per_step, request.ranks));
  }
  constexpr double longest = 1e15;  // beyond it sums of squares of costs are no numbers
  if (!std::isfinite(request.break_even) || request.break_even < 0 || request.break_even > longest) {
    options.misused(fmt::format("--break-even is {}, it must be a length, at most {}", request.break_even, longest));
  }
}

StepCosts costs_of(const PackRequest& request, double break_even) {
  return {request.packing.rows_per_step, request.ranks, static_cast<double>(request.packing.row_length), break_even};
}

// Whole steps, until so many inputs were dealt as the stores have, or as many steps as are asked for.
Packed pack(const PackRequest& request, PackedOrder& order, std::uint64_t targets) {
  Packed packed{costs_of(request, 0), costs_of(request, request.break_even)};
  const auto begin = std::chrono::steady_clock::now();
  const auto step_rows = static_cast<std::uint64_t>(request.packing.rows_per_step);
  const auto done = [&] {
    return request.steps > 0 ? packed.rows == request.steps * step_rows
                             : packed.used >= targets && packed.rows % step_rows == 0;
  };
  for (; !done(); ++packed.rows) {
    const PackedRow& row = order.next();
    const std::uint64_t squares = row.squares(order.row_length());
    packed.attention.add_row(squares);
    packed.all.add_row(squares);
    packed.used += row.used;
    for (const Piece& piece : row.pieces) {
      const bool goes_on = piece.begin + piece.count + 1 < order.source(piece.source).length(piece.document);
      packed.documents += piece.begin == 0 ? 1 : 0;
      packed.split += piece.begin == 0 && goes_on ? 1 : 0;
      packed.more_pieces += piece.begin > 0 ? 1 : 0;
    }
  }
  packed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return packed;
}

// The same documents in the same order, cut where a row ends.
Packed cut(const PackRequest& request, MixedPieces& pieces, std::uint64_t rows_wanted) {
  Packed cut{costs_of(request, 0), costs_of(request, request.break_even)};
  SequentialRows rows(static_cast<std::uint32_t>(request.packing.row_length));
  for (; cut.rows < rows_wanted; pieces.advance()) {
    rows.add(pieces.current(), [&](std::uint64_t squares) {
      cut.attention.add_row(squares);
      cut.all.add_row(squares);
      ++cut.rows;
    });
  }
  return cut;
}

void print_spread(const char* title, const StepCosts::Spread& before, const StepCosts::Spread& after) {
  std::printf("%-32s %10s %10s\n", title, "sequential", "packed");
  const auto line = [](const char* name, double a, double b) { std::printf("  %-30s %10.4f %10.4f\n", name, a, b); };
  line("mean over steps", before.mean, after.mean);
  line("median", before.median, after.median);
  line("99th percentile", before.p99, after.p99);
  line("largest", before.largest, after.largest);
  line("correlation of cost with step", before.correlation, after.correlation);
}

void print(const PackRequest& request, const PackedOrder& order, const Packed& packed, const Packed& before) {
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  const double positions = static_cast<double>(packed.rows) * static_cast<double>(request.packing.row_length);
  std::printf("rows             %llu of %lld tokens, in %llu steps of %lld for %lld ranks; windows of %llu steps\n",
              number(packed.rows), static_cast<long long>(request.packing.row_length),
              number(packed.attention.spread().steps), static_cast<long long>(request.packing.rows_per_step),
              static_cast<long long>(request.ranks), number(order.window_steps()));
  std::printf("loss tokens      %llu of %llu documents\n", number(packed.used), number(packed.documents));
  std::printf("padding          %llu tokens, %.4f%% of all positions\n",
              number(static_cast<std::uint64_t>(positions) - packed.used),
              100 * (1 - static_cast<double>(packed.used) / positions));
  std::printf("splits           %llu documents are longer than a row; %llu more pieces\n", number(packed.split),
              number(packed.more_pieces));
  std::printf("packed           in %s, %s documents a minute\n", format_duration(packed.seconds).c_str(),
              format_count(static_cast<double>(packed.documents) / packed.seconds * 60).c_str());
  print_spread("attention, worst rank / mean", before.attention.spread(), packed.attention.spread());
  if (request.break_even > 0) print_spread("with the rest", before.all.spread(), packed.all.spread());
}

}  // namespace

int command_data_pack(const Arguments& arguments) {
  PackRequest request;
  PackingOptions& packing = request.packing;
  CommandOptions options(
      "data pack", "STORE[:WEIGHT]... --sequence-length N --rows-per-step M [options]",
      "Says what plugin packing makes of token stores: rows, padding, splits, and how unevenly ranks\n"
      "work, against rows that are cut from the documents one after another.");
  options.add()("sequence-length", po::value(&packing.row_length)->value_name("N"),
                "tokens of a row: the job's training.sequence_length")(
      "rows-per-step", po::value(&packing.rows_per_step)->value_name("N"), "the job's training.rows_per_step")(
      "ranks", po::value(&request.ranks)->value_name("N")->default_value(1), "ranks that share a step's rows")(
      "seed", po::value(&packing.seed)->value_name("N")->default_value(1), "the job's training.seed")(
      "window-steps", po::value(&packing.window_steps)->value_name("N")->default_value(packing.window_steps),
      "the plugin's window_steps")("open-rows",
                                   po::value(&packing.open_rows)->value_name("N")->default_value(packing.open_rows),
                                   "the plugin's open_rows")(
      "break-even", po::value(&request.break_even)->value_name("N")->default_value(0, "attention alone"),
      "length of a document whose attention costs as much as the rest of the model")(
      "steps", po::value(&request.steps)->value_name("N")->default_value(0, "one epoch"), "how many steps to pack");
  options.words("STORE", request.stores);
  options.details(details);
  if (!options.read(arguments)) return 0;
  check(request, options);
  PackedOrder order(open(request, options), packing);
  MixedPieces pieces(open(request, options), packing.seed, static_cast<std::uint32_t>(packing.row_length));
  std::uint64_t targets = 0;
  for (const PackingSource& source : pieces.sources()) targets += source.documents->targets();
  const Packed packed = pack(request, order, targets);
  print(request, order, packed, cut(request, pieces, packed.rows));
  return 0;
}

}  // namespace ananke
