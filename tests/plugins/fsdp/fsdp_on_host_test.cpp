// fsdp and backend_host as a job loads them: streams that really run at once, ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/parameters.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke::testing {
namespace {

const std::filesystem::path library = ANANKE_BINARY_DIR "/lib/ananke";

float weight_of(int parameter, std::int64_t element) { return static_cast<float>((parameter * 13 + element) % 251); }

// One rank's life: weights are set, two steps run, every use adds its weights (or ones) to its gradient.
class Rank {
 public:
  Rank(const ParameterTable& table, const Placement& placement, int rank, Rendezvous& rendezvous)
      : table_(table), context_{job_, site_, placement.mesh(), rank} {
    plugins_.load("backend_host", library / "backend_host.so");
    plugins_.load("fsdp", library / "fsdp.so");
    backend_ = plugins_.create<Backend>("backend_host", context_, "");
    shard_ = backend_->make_communicator("shard", shard_group(placement.mesh(), rank), rendezvous);
    replicate_ = backend_->make_communicator("replicate", replicate_group(placement.mesh(), rank), rendezvous);
    experts_ = backend_->make_communicator("expert_shard", expert_shard_group(placement.mesh(), rank), rendezvous);
    fsdp_ = plugins_.create<Parameters>("fsdp", context_, "");
    fsdp_->start({*backend_, table, placement, coordinates(placement.mesh(), rank), *shard_, *replicate_, *experts_,
                  *shard_, *shard_, *shard_});
    std::int64_t largest = 0;
    for (std::size_t u = 0; u < table.units().size(); ++u) {
      largest = std::max(largest, placement.largest_padded(static_cast<int>(u)));
    }
    ones_ = backend_->device().host_memory().allocate(static_cast<std::size_t>(largest) * sizeof(float), "ones");
    std::fill_n(ones_.view(DType::f32, {largest}).as<float>(), largest, 1.0f);
    set_weights();
  }
  void run(const Schedule& schedule) {
    fsdp_->begin(schedule);
    for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
      const Item& item = schedule[static_cast<std::size_t>(i)];
      for (const UnitUse& use : item.units) {
        const UnitViews views = fsdp_->acquire(i, use.unit);
        if (item.phase == Phase::forward) continue;
        for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
          const TensorView& gradient = views.gradient[which];
          const TensorView more = views.weights ? views.weights[which] : ones_.view(DType::f32, gradient.shape);
          if (views.write_gradient) backend_->device().zero(compute(), gradient.data, gradient.bytes());
          if (gradient.elements() > 0) backend_->operators().elementwise->add(compute(), gradient, more, gradient);
        }
      }
      for (const UnitUse& use : item.units) {
        if (item.phase != Phase::forward) fsdp_->reduce(i, use.unit);
        fsdp_->release(i, use.unit);
      }
    }
    fsdp_->finish();
  }
  // Elements whose gradient is not what all ranks' items add up to.
  std::int64_t count_wrong(const Schedule& schedule) {
    std::int64_t wrong = 0;
    for (const OwnedFragment& f : fsdp_->fragments()) {
      float weights = 0, ones = 0;
      for (const Item& item : schedule) {
        for (const UnitUse& use : item.units) {
          if (item.phase == Phase::forward || use.unit != f.where.unit) continue;
          // Of experts only the ranks of one coordinate add.
          const bool experts = table_.units()[static_cast<std::size_t>(use.unit)].kind == UnitKind::experts;
          const int ranks = context_.mesh.ranks() / (experts ? context_.mesh.expert : 1);
          (use.needs_weights ? weights : ones) += static_cast<float>(ranks);
        }
      }
      std::vector<float> gradient(static_cast<std::size_t>(f.where.count));
      backend_->device().read(f.gradient, gradient.data());
      for (std::int64_t i = 0; i < f.where.count; ++i) {
        const float sum = weights * weight_of(f.where.parameter, f.where.begin + i) + ones;
        if (gradient[static_cast<std::size_t>(i)] != sum) ++wrong;
      }
    }
    return wrong;
  }

 private:
  Stream& compute() { return backend_->device().stream(Resource::compute); }
  void set_weights() {
    Device& device = backend_->device();
    for (const OwnedFragment& f : fsdp_->fragments()) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < f.where.count; ++i)
        values.push_back(weight_of(f.where.parameter, f.where.begin + i));
      device.copy(compute(), f.weight.data, values.data(), f.weight.bytes());
      compute().synchronize();
    }
    fsdp_->updated();
  }
  const ParameterTable& table_;
  const Job job_;
  const Site site_;
  const RoleContext context_;
  PluginRegistry plugins_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> shard_, replicate_, experts_;
  Buffer ones_;
  std::unique_ptr<Parameters> fsdp_;
};

TEST(FsdpOnHost, GradientsAreThePlainSumsOnEveryMesh) {
  for (const MeshShape mesh : {MeshShape{1, 1}, {1, 2}, {2, 2}, {1, 4}, {4, 1}, {1, 4, 2}, {2, 2, 2}, {1, 4, 4}}) {
    const ParameterTable table(make_model({.layers = 5, .experts = 3, .hidden = 16, .sparse_step = 2, .tied = true}));
    const Placement placement(table, mesh);
    run_rank_threads(mesh.ranks(), std::chrono::seconds(60), [&](int rank, Rendezvous& rendezvous) {
      Rank mine(table, placement, rank, rendezvous);
      for (const LoopOrder order : {LoopOrder::microbatch_outer, LoopOrder::layer_outer}) {
        const Schedule schedule = training_schedule(table, 3, order);
        mine.run(schedule);
        EXPECT_EQ(mine.count_wrong(schedule), 0) << to_string(mesh) << ", rank " << rank;
        const Schedule evaluation = evaluation_schedule(table);
        mine.run(evaluation);
      }
      rendezvous.exchange("done", {}, "");  // nobody leaves while others still exchange
    });
  }
}

}  // namespace
}  // namespace ananke::testing
