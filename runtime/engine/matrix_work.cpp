#include "runtime/engine/matrix_work.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace ananke {
namespace {

constexpr std::int64_t alignment = 64;  // elements, of the groups in the matrices' buffer
// Resident rounds, where there are so many matrices: some to compute while matrices travel or are broadcast.
constexpr std::int64_t least_rounds = 4;

std::int64_t aligned(std::int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

std::size_t at(int index) { return static_cast<std::size_t>(index); }

using Assignment = MatrixWork::Assignment;
using Ids = std::vector<std::size_t>;  // of matrices

// What some rank holds of a parameter.
struct Held {
  int rank;
  std::size_t fragment;  // of that rank's
  std::int64_t begin, count;
};

class Planner {
 public:
  Planner(const ParameterTable& table, const std::vector<std::string>& chosen, const OptimizerMap& optimizers,
          std::span<const std::vector<Fragment>> fragments, const MatrixWorkOptions& options)
      : table_(table),
        chosen_(chosen),
        options_(options),
        ranks_(static_cast<int>(fragments.size())),
        replicas_(options.share_replicas ? options.replicas : 1),
        held_(table.parameters().size()),
        loads_(at(ranks_ * replicas_)) {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (std::size_t i = 0; i < fragments[at(rank)].size(); ++i) {
        const Fragment& fragment = fragments[at(rank)][i];
        held_[at(fragment.parameter)].push_back({rank, i, fragment.begin, fragment.count});
      }
    }
    for (std::size_t p = 0; p < table.parameters().size(); ++p) add_matrices(p, *optimizers.at(chosen[p]));
  }

  void assign_residents();
  void assign_travellers();
  std::vector<MatrixRound> resident_rounds() const;
  std::vector<MatrixRound> travelling_rounds() const;
  std::vector<Assignment>& matrices() { return matrices_; }
  std::string hash() const;

 private:
  const Parameter& parameter(std::size_t id) const { return table_.parameters()[at(matrices_[id].parameter)]; }
  std::int64_t elements(std::size_t id) const { return matrices_[id].rows * matrices_[id].columns; }
  int replica() const { return replicas_ > 1 ? options_.replica : 0; }
  static std::int64_t elements_in(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes / sizeof(float)); }

  void add_matrices(std::size_t index, Optimizer& optimizer);
  std::vector<Held> parts_of(std::size_t id) const;
  Ids longest_first(Ids ids) const;
  Ids by_shape(Ids ids) const;
  std::vector<Ids> cut_rounds(const Ids& ids, std::int64_t most) const;
  void share(const Ids& round, int first_worker, int step, std::int64_t capacity);
  std::int64_t place_groups(const Ids& ids, std::int64_t begin, std::map<std::size_t, std::int64_t>& places,
                            std::vector<MatrixGroup>& groups) const;
  std::vector<Route> routes_of(const Ids& ids) const;
  MatrixPart own_part(std::size_t id, const ArrayPart& what) const;
  MatrixRound resident_round(const Ids& ids) const;
  MatrixRound travelling_round(const Ids& ids) const;

  const ParameterTable& table_;
  const std::vector<std::string>& chosen_;
  const MatrixWorkOptions& options_;
  const int ranks_, replicas_;           // replicas that share the work
  std::vector<std::vector<Held>> held_;  // by parameter
  std::vector<double> loads_;            // by replica, then rank
  std::vector<Assignment> matrices_;
  std::vector<Optimizer*> optimizers_;      // by matrix
  std::vector<std::vector<Ids>> resident_;  // by rank, then round
  std::vector<Ids> travelling_;             // by round
};

void Planner::add_matrices(std::size_t index, Optimizer& optimizer) {
  const Parameter& parameter = table_.parameters()[index];
  if (optimizer.layout(parameter) == OptimizerLayout::any_fragment) return;
  const std::int64_t rows = optimizer.matrix_rows(parameter), columns = parameter.shape[1];
  const std::int64_t count = parameter.shape[0] / rows;
  const double cost = optimizer.cost(parameter) / static_cast<double>(count);
  for (std::int64_t i = 0; i < count; ++i) {
    Assignment matrix{.parameter = static_cast<int>(index), .begin = i * rows * columns, .rows = rows};
    matrix.columns = columns;
    matrix.cost = cost;
    matrices_.push_back(matrix);
    optimizers_.push_back(&optimizer);
  }
}

// The parts of a matrix, within the parameter, ascending.
std::vector<Held> Planner::parts_of(std::size_t id) const {
  const std::int64_t begin = matrices_[id].begin, end = begin + elements(id);
  std::vector<Held> parts;
  for (const Held& held : held_[at(matrices_[id].parameter)]) {
    const std::int64_t first = std::max(begin, held.begin), last = std::min(end, held.begin + held.count);
    if (first < last) parts.push_back({held.rank, held.fragment, first, last - first});
  }
  return parts;
}

Ids Planner::longest_first(Ids ids) const {
  std::sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) {
    const auto key = [&](std::size_t id) { return std::make_tuple(-matrices_[id].cost, -elements(id)); };
    if (key(a) != key(b)) return key(a) < key(b);
    return std::tie(parameter(a).name, matrices_[a].begin) < std::tie(parameter(b).name, matrices_[b].begin);
  });
  return ids;
}

Ids Planner::by_shape(Ids ids) const {
  std::sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) {
    const Assignment &one = matrices_[a], &other = matrices_[b];
    return std::tie(chosen_[at(one.parameter)], one.rows, one.columns, a) <
           std::tie(chosen_[at(other.parameter)], other.rows, other.columns, b);
  });
  return ids;
}

// Consecutive matrices of at most `most` elements together, one at least.
std::vector<Ids> Planner::cut_rounds(const Ids& ids, std::int64_t most) const {
  std::vector<Ids> rounds;
  std::int64_t sum = 0;
  for (const std::size_t id : ids) {
    if (rounds.empty() || sum + elements(id) > most) {
      rounds.emplace_back();
      sum = 0;
    }
    rounds.back().push_back(id);
    sum += elements(id);
  }
  return rounds;
}

// Gives each matrix to the worker of least load that has room, of the workers first, first + step, ...
void Planner::share(const Ids& round, int first_worker, int step, std::int64_t capacity) {
  std::vector<std::int64_t> taken(loads_.size());
  for (const std::size_t id : longest_first(round)) {
    const auto key = [&](std::size_t worker) {
      const bool room = taken[worker] + elements(id) <= capacity;
      return std::make_tuple(!room, room ? loads_[worker] : static_cast<double>(taken[worker]));
    };
    std::size_t best = at(first_worker);
    for (std::size_t worker = best; worker < loads_.size(); worker += at(step)) {
      if (key(worker) < key(best)) best = worker;
    }
    loads_[best] += matrices_[id].cost;
    taken[best] += elements(id);
    matrices_[id].replica = static_cast<int>(best) / ranks_;
    matrices_[id].rank = static_cast<int>(best) % ranks_;
  }
}

void Planner::assign_residents() {
  std::vector<Ids> of_rank(at(ranks_));
  Ids travellers;
  for (std::size_t id = 0; id < matrices_.size(); ++id) {
    const std::vector<Held> parts = parts_of(id);
    if (parts.size() == 1) {
      of_rank[at(parts[0].rank)].push_back(id);
    } else {
      matrices_[id].travels = true;
      travellers.push_back(id);
    }
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    const Ids& own = of_rank[at(rank)];
    const auto add = [&](std::int64_t sum, std::size_t id) { return sum + elements(id); };
    const std::int64_t all = std::accumulate(own.begin(), own.end(), std::int64_t{0}, add);
    resident_.push_back(cut_rounds(by_shape(own), std::min(elements_in(options_.resident_bytes), all / least_rounds)));
    for (std::size_t round = 0; round < resident_.back().size(); ++round) {
      for (const std::size_t id : resident_.back()[round]) matrices_[id].round = static_cast<int>(round);
      share(resident_.back()[round], rank, ranks_, std::numeric_limits<std::int64_t>::max());
    }
  }
  travelling_.push_back(std::move(travellers));
}

void Planner::assign_travellers() {
  const Ids all = std::move(travelling_[0]);
  std::int64_t most = elements_in(options_.bucket_bytes);
  for (const std::size_t id : all) most = std::max(most, elements(id));
  travelling_ = cut_rounds(
      all, most > std::numeric_limits<std::int64_t>::max() / (ranks_ * replicas_) ? most : most * ranks_ * replicas_);
  for (std::size_t round = 0; round < travelling_.size(); ++round) {
    for (const std::size_t id : travelling_[round]) matrices_[id].round = static_cast<int>(round);
    share(travelling_[round], 0, 1, most);
  }
}

// Lays the matrices of `ids`, ordered by shape, one behind the other from `begin` on; returns the end.
std::int64_t Planner::place_groups(const Ids& ids, std::int64_t begin, std::map<std::size_t, std::int64_t>& places,
                                   std::vector<MatrixGroup>& groups) const {
  std::int64_t end = begin;
  for (const std::size_t id : ids) {
    const Assignment& matrix = matrices_[id];
    const bool fits = !groups.empty() && groups.back().optimizer == optimizers_[id] &&
                      groups.back().rows == matrix.rows && groups.back().columns == matrix.columns;
    if (!fits) {
      end = aligned(end);
      groups.push_back({optimizers_[id], 0, matrix.rows, matrix.columns, end});
    }
    ++groups.back().count;
    places[id] = end;
    end += elements(id);
  }
  return end;
}

// This rank's part `what` of a matrix, by fragment; its offset is still to be filled in.
MatrixPart Planner::own_part(std::size_t id, const ArrayPart& what) const {
  const std::int64_t begin = matrices_[id].begin + what.begin;
  for (const Held& held : held_[at(matrices_[id].parameter)]) {
    if (held.rank == options_.rank && held.begin <= begin && begin + what.count <= held.begin + held.count) {
      return {held.fragment, begin - held.begin, what.count, 0};
    }
  }
  fail(ErrorKind::internal, "no fragment holds elements {} to {} of {} on rank {}", begin, begin + what.count,
       parameter(id).name, options_.rank);
}

MatrixRound Planner::resident_round(const Ids& ids) const {
  MatrixRound round;
  std::map<std::size_t, std::int64_t> places;
  for (int r = 0; r < replicas_; ++r) {
    Ids mine;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(mine), [&](auto id) { return matrices_[id].replica == r; });
    std::vector<MatrixGroup> groups;
    const std::int64_t begin = aligned(round.matrices);
    round.matrices = place_groups(by_shape(mine), begin, places, groups);
    if (r == replica()) round.groups = std::move(groups);
    if (replicas_ > 1) round.broadcast.push_back({begin, round.matrices - begin});
  }
  for (const std::size_t id : ids) {
    round.parts.push_back(own_part(id, {0, 0, elements(id)}));
    round.parts.back().offset = places.at(id);
  }
  return round;
}

std::vector<MatrixRound> Planner::resident_rounds() const {
  std::vector<MatrixRound> rounds;
  for (const Ids& ids : resident_[at(options_.rank)]) rounds.push_back(resident_round(ids));
  return rounds;
}

// The matrices of `ids` are the arrays; from where they are stored to their owners.
std::vector<Route> Planner::routes_of(const Ids& ids) const {
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<ArrayPart>> before(at(ranks_)), after(at(ranks_));
  for (const std::size_t id : ids) {
    const int array = static_cast<int>(sizes.size());
    sizes.push_back(elements(id));
    after[at(matrices_[id].rank)].push_back({array, 0, elements(id)});
    for (const Held& part : parts_of(id)) {
      before[at(part.rank)].push_back({array, part.begin - matrices_[id].begin, part.count});
    }
  }
  return plan_routes(sizes, before, after);
}

MatrixRound Planner::travelling_round(const Ids& ids) const {
  MatrixRound round;
  for (int r = 0; r < replicas_; ++r) {
    Ids mine;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(mine), [&](auto id) { return matrices_[id].replica == r; });
    Redistribution exchange(routes_of(mine), ranks_, options_.rank);
    const ElementRange sent{round.transfer, exchange.sent_elements()};
    for (const Redistribution::Piece& piece : exchange.sent()) {
      round.parts.push_back(own_part(mine[at(piece.what.array)], piece.what));
      round.parts.back().offset = sent.begin + piece.offset;
    }
    round.transfer += sent.count;
    if (replicas_ > 1) round.broadcast.push_back(sent);
    if (r != replica()) continue;
    Ids owned;
    std::copy_if(mine.begin(), mine.end(), std::back_inserter(owned),
                 [&](auto id) { return matrices_[id].rank == options_.rank; });
    std::map<std::size_t, std::int64_t> places;
    round.matrices = place_groups(by_shape(owned), 0, places, round.groups);
    for (const Redistribution::Piece& piece : exchange.received()) {
      round.copies.push_back(
          {piece.offset, places.at(mine[at(piece.what.array)]) + piece.what.begin, piece.what.count});
    }
    round.sent = sent;
    round.exchange = std::move(exchange);
  }
  return round;
}

std::vector<MatrixRound> Planner::travelling_rounds() const {
  std::vector<MatrixRound> rounds;
  for (const Ids& ids : travelling_) rounds.push_back(travelling_round(ids));
  return rounds;
}

std::string Planner::hash() const {
  Hasher hasher;
  for (const Assignment& m : matrices_) {
    const std::int64_t numbers[] = {m.parameter, m.begin, m.rows, m.columns, m.travels, m.round, m.replica, m.rank};
    hasher.update(numbers, sizeof numbers);
  }
  return hasher.hex();
}

}  // namespace

MatrixWork::MatrixWork(const ParameterTable& table, const std::vector<std::string>& chosen,
                       const OptimizerMap& optimizers, std::span<const std::vector<Fragment>> fragments,
                       const MatrixWorkOptions& options) {
  ANANKE_CHECK(options.rank >= 0 && at(options.rank) < fragments.size() && options.replica >= 0 &&
                   options.replica < options.replicas,
               "matrix work of rank {} of {} and replica {} of {}", options.rank, fragments.size(), options.replica,
               options.replicas);
  Planner planner(table, chosen, optimizers, fragments, options);
  planner.assign_residents();
  planner.assign_travellers();
  resident_ = planner.resident_rounds();
  travelling_ = planner.travelling_rounds();
  hash_ = planner.hash();
  assignments_ = std::move(planner.matrices());
}

}  // namespace ananke
