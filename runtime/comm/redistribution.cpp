#include "runtime/comm/redistribution.h"

#include <algorithm>
#include <tuple>

#include "runtime/base/error.h"

namespace ananke {
namespace {

struct Held {
  std::int64_t begin, end;
  int rank;
};

// Who holds what of each array, ascending; checked to be every element once.
std::vector<std::vector<Held>> holders(std::span<const std::int64_t> sizes,
                                       std::span<const std::vector<ArrayPart>> parts, const char* when) {
  std::vector<std::vector<Held>> all(sizes.size());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    for (const ArrayPart& part : parts[rank]) {
      ANANKE_CHECK(part.array >= 0 && static_cast<std::size_t>(part.array) < sizes.size(),
                   "redistribution: rank {} holds a part of array {} of {} {}", rank, part.array, sizes.size(), when);
      const std::int64_t size = sizes[static_cast<std::size_t>(part.array)];
      ANANKE_CHECK(part.begin >= 0 && part.count > 0 && part.count <= size - part.begin,
                   "redistribution: rank {} holds {} elements from {} on of array {} {}, which has {}", rank,
                   part.count, part.begin, part.array, when, size);
      all[static_cast<std::size_t>(part.array)].push_back(
          {part.begin, part.begin + part.count, static_cast<int>(rank)});
    }
  }
  for (std::size_t array = 0; array < sizes.size(); ++array) {
    auto& held = all[array];
    std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.begin < b.begin; });
    std::int64_t end = 0;
    for (const Held& part : held) {
      ANANKE_CHECK(part.begin == end, "redistribution: element {} of array {} is {} {}", std::min(part.begin, end),
                   array, part.begin < end ? "on two ranks" : "on no rank", when);
      end = part.end;
    }
    ANANKE_CHECK(end == sizes[array], "redistribution: element {} of array {} is on no rank {}", end, array, when);
  }
  return all;
}

std::uint64_t bytes_from_others(std::span<const std::int64_t> counts, int rank) {
  std::uint64_t elements = 0;
  for (std::size_t peer = 0; peer < counts.size(); ++peer) {
    if (static_cast<int>(peer) != rank) elements += static_cast<std::uint64_t>(counts[peer]);
  }
  return elements * sizeof(float);
}

}  // namespace

std::vector<Route> plan_routes(std::span<const std::int64_t> sizes, std::span<const std::vector<ArrayPart>> before,
                               std::span<const std::vector<ArrayPart>> after) {
  const auto from = holders(sizes, before, "before"), to = holders(sizes, after, "after");
  std::vector<Route> routes;
  for (std::size_t array = 0; array < sizes.size(); ++array) {
    // Both lists cover the array: every piece ends where a part of one of them does.
    for (std::size_t i = 0, j = 0; i < from[array].size() && j < to[array].size();) {
      const Held &source = from[array][i], &target = to[array][j];
      const std::int64_t begin = std::max(source.begin, target.begin), end = std::min(source.end, target.end);
      routes.push_back({source.rank, target.rank, {static_cast<int>(array), begin, end - begin}});
      if (source.end == end) ++i;
      if (target.end == end) ++j;
    }
  }
  std::sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) {
    return std::tie(a.from, a.to, a.what.array, a.what.begin) < std::tie(b.from, b.to, b.what.array, b.what.begin);
  });
  return routes;
}

Redistribution::Redistribution(std::span<const Route> routes, int ranks, int rank)
    : send_counts_(static_cast<std::size_t>(ranks)), receive_counts_(static_cast<std::size_t>(ranks)) {
  // In the order of the routes both lists come out as promised: for one source by destination, for one destination by
  // source.
  for (const Route& route : routes) {
    ANANKE_CHECK(std::max(route.from, route.to) < ranks, "a route from rank {} to {} among {}", route.from, route.to,
                 ranks);
    if (route.from == rank) {
      sent_.push_back({route.what, route.to, sent_elements_});
      sent_elements_ += route.what.count;
      send_counts_[static_cast<std::size_t>(route.to)] += route.what.count;
    }
    if (route.to == rank) {
      received_.push_back({route.what, route.from, received_elements_});
      received_elements_ += route.what.count;
      receive_counts_[static_cast<std::size_t>(route.from)] += route.what.count;
    }
  }
}

std::uint64_t Redistribution::forward(Stream& stream, Communicator& ranks, const TensorView& sent,
                                      const TensorView& received) const {
  ranks.all_to_all(stream, sent.slice(0, sent_elements_), send_counts_, received.slice(0, received_elements_),
                   receive_counts_);
  return bytes_from_others(receive_counts_, ranks.rank());
}

std::uint64_t Redistribution::backward(Stream& stream, Communicator& ranks, const TensorView& sent,
                                       const TensorView& received) const {
  ranks.all_to_all(stream, received.slice(0, received_elements_), receive_counts_, sent.slice(0, sent_elements_),
                   send_counts_);
  return bytes_from_others(send_counts_, ranks.rank());
}

}  // namespace ananke
