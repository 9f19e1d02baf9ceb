// One layer's results by plugin ep against those of one rank, and what must hold of every exchange.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "plugins/ep/layout.h"
#include "tests/plugins/ep/layer_run.h"

namespace ananke::testing {

inline double difference(const Floats& got, const Floats& wanted) {
  double worst = 0, largest = 0.1;
  if (got.size() != wanted.size()) return HUGE_VAL;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return HUGE_VAL;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
  }
  return worst / largest;
}

inline void expect_same_layers(const LayerRun& got, const LayerRun& wanted, double bound) {
  ASSERT_EQ(got.layers.size(), wanted.layers.size());
  for (std::size_t i = 0; i < got.layers.size(); ++i) {
    EXPECT_LE(difference(got.layers[i].y, wanted.layers[i].y), bound) << "y of layer " << i;
    EXPECT_LE(difference(got.layers[i].dx, wanted.layers[i].dx), bound) << "dx of layer " << i;
    EXPECT_LE(difference(got.layers[i].dweights, wanted.layers[i].dweights), bound) << "dweights of layer " << i;
    EXPECT_LE(difference(got.layers[i].gradients, wanted.layers[i].gradients), bound) << "gradients of layer " << i;
  }
}

// Copies that rank `to` receives from other ranks in one layer's dispatch, counted from the routing.
inline std::int64_t copies_to(const LayerCase& c, int layer, int to) {
  const int ranks = static_cast<int>(c.tokens.size());
  const LayerData data = make_data(c, layer);
  std::int64_t copies = 0, token = 0;
  for (int from = 0; from < ranks; ++from) {
    for (std::int64_t t = 0; t < c.tokens[static_cast<std::size_t>(from)]; ++t, ++token) {
      bool wanted = false;
      for (std::int64_t j = 0; j < c.k; ++j) {
        wanted = wanted || data.indices[static_cast<std::size_t>(token * c.k + j)] * ranks / c.experts == to;
      }
      copies += from != to && wanted;
    }
  }
  return copies;
}

inline void expect_same_bits(const LayerRun& got, const LayerRun& wanted) {
  ASSERT_EQ(got.layers.size(), wanted.layers.size());
  for (std::size_t i = 0; i < got.layers.size(); ++i) {
    EXPECT_EQ(got.layers[i].y, wanted.layers[i].y) << "y of layer " << i;
    EXPECT_EQ(got.layers[i].dx, wanted.layers[i].dx) << "dx of layer " << i;
    EXPECT_EQ(got.layers[i].dweights, wanted.layers[i].dweights) << "dweights of layer " << i;
    EXPECT_EQ(got.layers[i].gradients, wanted.layers[i].gradients) << "gradients of layer " << i;
  }
}

// Who knows how many tokens travel.
enum class Counts { device, host };
inline std::string with(const std::string& config, Counts counts) {
  return counts == Counts::host ? config + " counts: HOST" : config;
}

// Collectives, reads, memory and bytes are as they must be whatever the data. Alone a rank reads its counts.
inline void expect_well_behaved(const LayerRun& run, const LayerCase& c, int chunks, DType wire,
                                Counts counts = Counts::device) {
  const bool reads = counts == Counts::host || run.ranks.size() == 1;
  const std::size_t passes = static_cast<std::size_t>(c.layers);
  const std::size_t told = reads ? passes * (c.recompute ? 2 : 1) : 0;  // counts, apart from rows
  const std::size_t each = static_cast<std::size_t>(chunks) * (c.recompute ? 5 : 4);
  const ep::Buffers rows = ep::buffers_of({.tokens = 1, .hidden = c.hidden, .experts = c.experts, .k = c.k}, 1, wire);
  std::map<Direction, std::uint64_t> moved;
  std::int64_t copies = 0;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankReport& report = run.ranks[rank];
    EXPECT_EQ(report.collectives, run.ranks[0].collectives) << "rank " << rank;
    EXPECT_EQ(report.collectives.size(), passes * each + told);
    EXPECT_EQ(report.reads, reads ? passes : 0) << "one read per layer and forward, or none";
    for (const auto& [purpose, bytes] : report.planned) {
      EXPECT_EQ(report.in_use.count(purpose) ? report.in_use.at(purpose) : 0, bytes) << purpose;
    }
    for (int layer = 0; layer < c.layers; ++layer) copies += copies_to(c, layer, static_cast<int>(rank));
    for (const TrafficLine& line : report.traffic) {
      EXPECT_EQ(line.axis, "expert");
      EXPECT_EQ(line.resource, Resource::nvlink);
      moved[line.direction] += line.bytes;
    }
  }
  const auto times = [&](const WireRow& row) { return static_cast<std::uint64_t>(copies * row.bytes()); };
  const std::size_t others = run.ranks.size() - 1;
  EXPECT_EQ(moved[Direction::counts],
            told * run.ranks.size() * others * static_cast<std::size_t>(chunks) * sizeof(std::int32_t));
  EXPECT_EQ(moved[Direction::dispatch], times(rows.token) * (c.recompute ? 2 : 1));
  EXPECT_EQ(moved[Direction::combine], times(rows.plain));
  EXPECT_EQ(moved[Direction::combine_backward], times(rows.plain));
  EXPECT_EQ(moved[Direction::dispatch_backward], times(rows.gradient));
  const std::int64_t most = std::min<std::int64_t>(c.k, static_cast<std::int64_t>(others));
  EXPECT_LE(copies, c.all() * most * c.layers) << "more than one copy for each rank with an expert of the token";
}

}  // namespace ananke::testing
