#include "runtime/engine/replica_check.h"

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr const char* purpose = "replica check";

std::size_t bytes_for(std::size_t fragments) { return fragments * 2 * sizeof(std::int64_t); }

}  // namespace

bool ReplicaCheck::wanted(const Job& job) {
#ifdef NDEBUG
  return job.training().check_replicas();
#else
  static_cast<void>(job);
  return true;
#endif
}

std::vector<PlanLine> ReplicaCheck::plan(const MeshShape& mesh, std::span<const Fragment> owned) {
  if (mesh.replicate == 1) return {};
  return {{purpose, Place::device, bytes_for(owned.size())}};
}

ReplicaCheck::ReplicaCheck(const ParameterTable& table, Backend& backend, Communicator& replicate,
                           std::span<const OwnedFragment> fragments)
    : table_(table),
      backend_(backend),
      replicate_(replicate),
      fragments_(fragments),
      hashed_(backend.device().make_event()),
      compared_(backend.device().make_event()) {
  if (replicate.size() == 1 || fragments.empty()) return;
  memory_ = backend.device().memory().allocate(bytes_for(fragments.size()), purpose);
  hashes_ = memory_.view(DType::i64, {static_cast<std::int64_t>(fragments.size()), 2});
}

void ReplicaCheck::run(std::uint64_t step) {
  if (!memory_) return;
  Device& device = backend_.device();
  Stream& compute = device.stream(Resource::compute);
  Stream& network = device.stream(Resource::network);
  const TensorView flat = hashes_.reshaped({hashes_.elements()});
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    backend_.operators().elementwise->hash(compute, fragments_[i].weight,
                                           flat.slice(static_cast<std::int64_t>(2 * i), 2));
  }
  compute.record(*hashed_);
  network.wait(*hashed_);
  replicate_.all_reduce(network, flat, Reduction::max);
  network.record(*compared_);
  compute.wait(*compared_);

  // The largest hash and the complement of the smallest one.
  std::vector<std::int64_t> extremes(static_cast<std::size_t>(flat.elements()));
  device.read(flat, extremes.data());
  std::string names;
  int different = 0;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    const Fragment& where = fragments_[i].where;
    constexpr int most = 3;
    if (++different <= most) {
      names += fmt::format("{}{} (elements {} to {})", names.empty() ? "" : ", ",
                           table_.parameters()[static_cast<std::size_t>(where.parameter)].name, where.begin,
                           where.begin + where.count);
    }
  }
  if (different == 0) return;
  fail(
      ErrorKind::numeric,
      "step {}: {} of the {} parameters that this rank owns a part of are not the same bits on all {} replicas: {}; an "
      "operator or a sum over replicas gives other results on one rank than on another. The checkpoint before this "
      "step is good; look for hardware errors, and for operators that do not keep their order of summation",
      step, different, fragments_.size(), replicate_.size(), names);
}

}  // namespace ananke
