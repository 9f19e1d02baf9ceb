#include "runtime/engine/replica_check.h"

#include <utility>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr const char* purpose = "replica check";

std::size_t bytes_for(std::size_t hashed) { return hashed * 2 * sizeof(std::int64_t); }

// Collects names, of which the first few are told.
class Names {
 public:
  void add(const std::string& name) {
    constexpr int most = 3;
    if (++count_ <= most) text_ += (text_.empty() ? "" : ", ") + name;
    if (count_ == most + 1) text_ += ", ...";
  }
  int count() const { return count_; }
  const std::string& text() const { return text_; }

 private:
  int count_ = 0;
  std::string text_;
};

// The largest hash and the complement of the smallest one.
bool is_alike(std::span<const std::int64_t> extremes, std::size_t index) {
  return extremes[2 * index] == ~extremes[2 * index + 1];
}

}  // namespace

bool ReplicaCheck::wanted(const Job& job) {
#ifdef NDEBUG
  return job.training().check_replicas();
#else
  static_cast<void>(job);
  return true;
#endif
}

std::vector<PlanLine> ReplicaCheck::plan(const ParameterTable& table, const MeshShape& mesh,
                                         std::span<const Fragment> owned) {
  const std::size_t weights = mesh.replicate > 1 ? owned.size() : 0;
  const std::size_t biases = mesh.ranks() > 1 ? table.buffers().size() : 0;
  if (weights + biases == 0) return {};
  return {{purpose, Place::device, bytes_for(weights + biases)}};
}

std::vector<CollectiveUse> ReplicaCheck::exchanges(const ParameterTable& table, std::span<const Fragment> owned) {
  return {{"replicate", CollectiveKind::all_reduce, bytes_for(owned.size())},
          {"world", CollectiveKind::all_reduce, bytes_for(table.buffers().size())}};
}

ReplicaCheck::ReplicaCheck(const ParameterTable& table, Backend& backend, Communicator& replicate, Communicator& world,
                           std::span<const OwnedFragment> fragments, const TensorView& biases)
    : table_(table),
      backend_(backend),
      replicate_(replicate),
      world_(world),
      hashed_(backend.device().make_event()),
      compared_(backend.device().make_event()) {
  if (replicate.size() > 1) fragments_ = fragments;
  if (world.size() > 1) biases_ = biases;
  const std::int64_t layers = biases_ ? biases_.shape[0] : 0;
  ANANKE_CHECK(!biases_ || std::cmp_equal(layers, table.buffers().size()), "biases of {} layers for {} routers", layers,
               table.buffers().size());
  const std::int64_t hashed = std::ssize(fragments_) + layers;
  if (hashed == 0) return;
  memory_ = backend.device().memory().allocate(bytes_for(static_cast<std::size_t>(hashed)), purpose);
  hashes_ = memory_.view(DType::i64, {hashed, 2});
}

void ReplicaCheck::hash_all() {
  Stream& compute = backend_.device().stream(Resource::compute);
  Elementwise& elementwise = *backend_.operators().elementwise;
  const TensorView flat = hashes_.reshaped({hashes_.elements()});
  std::int64_t at = 0;
  const auto hash = [&](const TensorView& values) { elementwise.hash(compute, values, flat.slice(2 * at++, 2)); };
  for (const OwnedFragment& fragment : fragments_) hash(fragment.weight);
  for (std::int64_t i = 0; biases_ && i < biases_.shape[0]; ++i) {
    hash(biases_.slice(i * biases_.shape[1], biases_.shape[1]));
  }
}

void ReplicaCheck::run(std::uint64_t step) {
  if (!memory_) return;
  Device& device = backend_.device();
  Stream& compute = device.stream(Resource::compute);
  Stream& network = device.stream(Resource::network);
  hash_all();
  const TensorView flat = hashes_.reshaped({hashes_.elements()});
  const std::int64_t weights = 2 * std::ssize(fragments_), biases = flat.elements() - weights;
  compute.record(*hashed_);
  network.wait(*hashed_);
  if (weights > 0) replicate_.all_reduce(network, flat.slice(0, weights), Reduction::max);
  if (biases > 0) world_.all_reduce(network, flat.slice(weights, biases), Reduction::max);
  network.record(*compared_);
  compute.wait(*compared_);

  std::vector<std::int64_t> extremes(static_cast<std::size_t>(flat.elements()));
  device.read(flat, extremes.data());
  const auto all = std::span<const std::int64_t>(extremes);
  const std::string weights_differ = describe_weights(all.first(static_cast<std::size_t>(weights))),
                    biases_differ = describe_biases(all.subspan(static_cast<std::size_t>(weights)));
  if (weights_differ.empty() && biases_differ.empty()) return;
  fail(ErrorKind::numeric,
       "step {}: {}{}{}; an operator or a sum over ranks gives other results on one rank than on another. The "
       "checkpoint before this step is good; look for hardware errors, and for operators that do not keep their order "
       "of summation",
       step, weights_differ, weights_differ.empty() || biases_differ.empty() ? "" : "; and ", biases_differ);
}

std::string ReplicaCheck::describe_weights(std::span<const std::int64_t> extremes) const {
  Names names;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    if (is_alike(extremes, i)) continue;
    const Fragment& where = fragments_[i].where;
    names.add(fmt::format("{} (elements {} to {})", table_.parameters()[static_cast<std::size_t>(where.parameter)].name,
                          where.begin, where.begin + where.count));
  }
  if (names.count() == 0) return "";
  return fmt::format(
      "{} of the {} parameters that this rank owns a part of are not the same bits on all {} replicas: {}",
      names.count(), fragments_.size(), replicate_.size(), names.text());
}

std::string ReplicaCheck::describe_biases(std::span<const std::int64_t> extremes) const {
  Names names;
  for (std::size_t i = 0; 2 * i < extremes.size(); ++i) {
    if (!is_alike(extremes, i)) names.add(table_.buffers()[i].name);
  }
  if (names.count() == 0) return "";
  return fmt::format("{} of the {} routers' biases are not the same bits on all {} ranks: {}", names.count(),
                     extremes.size() / 2, world_.size(), names.text());
}

}  // namespace ananke
