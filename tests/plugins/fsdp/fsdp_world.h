// Ranks as threads, each with an fsdp plugin on a deferred backend, and a stand-in for the engine that checks every
// gathered weight and adds a known gradient.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/fsdp/fsdp.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/parameters.h"
#include "tests/plugins/fsdp/deferred_backend.h"
#include "tests/runtime/comm/small_model.h"

extern "C" const ananke::PluginDescriptorV1* ananke_plugin_v1();

namespace ananke::testing {

inline std::unique_ptr<Parameters> make_fsdp(const plugin::Fsdp& config, const MeshShape& mesh, int rank,
                                             int node_ranks = 1, DType compute = DType::f32,
                                             DType stored = DType::f32) {
  const auto make_job = [](Training::Compute compute, Training::Compute weights) {
    Job job;
    job.mutable_training()->set_compute(compute);
    job.mutable_training()->set_weights(weights);
    return job;
  };
  static const Job fp32 = make_job(Training::FP32, Training::FP32), bf16 = make_job(Training::BF16, Training::FP32),
                   narrow = make_job(Training::BF16, Training::BF16);
  const Job& job = stored == DType::bf16 ? narrow : compute == DType::bf16 ? bf16 : fp32;
  static const Site site;
  const RoleContext context{job, site, mesh, rank, node_ranks};
  const std::string bytes = config.SerializeAsString();
  void* object = nullptr;
  char message[256] = "";
  const int code = ananke_plugin_v1()->create(&context, bytes.data(), bytes.size(), &object, message, sizeof message);
  if (code != 0) fail(static_cast<ErrorKind>(code), "{}", message);
  return std::unique_ptr<Parameters>(static_cast<Parameters*>(object));
}

inline plugin::Fsdp fsdp_config(bool reshard, unsigned prefetch, unsigned reduce = 1) {
  plugin::Fsdp config;
  config.set_reshard_after_forward(reshard);
  config.set_prefetch_blocks(prefetch);
  config.set_reduce_blocks(reduce);
  return config;
}

// Distinct and exact in f32: sums of them are the same in any order.
inline float weight_of(int parameter, std::int64_t element, int version) {
  return static_cast<float>((parameter * 37 + element * 3 + version * 101) % 4093);
}
inline float gradient_of(int parameter, std::int64_t element, int rank, const Item& item) {
  return static_cast<float>((parameter * 5 + element + rank * 11 + item.microbatch * 7 + item.block * 3) %
                            31);  // a few of them are exact in bf16
}

struct WorldShape {
  SmallModel model;
  MeshShape mesh;
  plugin::Fsdp config;
  Eager eager = Eager::compute;
  int node_ranks = 1;  // of the shard axis; it is their multiple
  DType compute = DType::f32;
  DType stored = DType::f32;
  bool shared_memory = false;  // among the ranks of the axes that units are cut over
};

// What a use sees of a weight that travelled in this format, and is used in this type.
inline bool is_rounded(float got, float weight, plugin::Fsdp::Gather format, DType type) {
  if (type == DType::bf16 && format == plugin::Fsdp::FP32) format = plugin::Fsdp::BF16;
  switch (format) {
    case plugin::Fsdp::BF16: return got == reference::from_bf16(reference::to_bf16(weight));
    // Half a step of the weight's own exponent, or of the smallest one under a scale of at most 4093 / 224.
    case plugin::Fsdp::FP8_E4M3:
      return std::abs(got - weight) <= std::max(std::abs(weight) / 16, 0x1p-10f * 4093 / 224);
    default: return got == weight;
  }
}

// One rank.
struct Rank {
  int rank;
  const WorldShape& shape;
  const ParameterTable& table;
  const Placement& placement;
  DeferredBackend backend;
  std::vector<std::string> log;  // collectives, in the order issued
  std::unique_ptr<Communicator> shard, replicate, expert_shard, node;
  std::unique_ptr<Parameters> fsdp;
  std::vector<std::vector<float>> gradients;  // of the fragments, as the last step left them
  int version = 0;
  std::string wrong;  // the first value that was not as expected

  Rank(int rank, const WorldShape& shape, const ParameterTable& table, const Placement& placement)
      : rank(rank), shape(shape), table(table), placement(placement), backend(shape.eager) {}

  DeferredStream& compute() { return backend.device().stream(Resource::compute); }
  void start() {
    fsdp = make_fsdp(shape.config, shape.mesh, rank, shape.node_ranks, shape.compute, shape.stored);
    fsdp->start(context());
    write_weights();
  }
  // fsdp uses neither expert nor world.
  StartContext context() {
    return {backend, table,  placement, coordinates(shape.mesh, rank), *shard, *replicate, *expert_shard,
            *shard,  *shard, *node};
  }
  const UnitPlacement& place(int unit) const { return placement.unit(unit, coordinates(shape.mesh, rank)); }
  // What an optimizer does.
  void write_weights() {
    compute().put([fragments = fsdp->fragments(), next = ++version] {
      for (const OwnedFragment& f : fragments) {
        for (std::int64_t i = 0; i < f.where.count; ++i) {
          set_value(f.weight, i, weight_of(f.where.parameter, f.where.begin + i, next));
        }
      }
    });
    fsdp->updated();
  }
  // visit(parameter, element of it, segment, element of the segment)
  template <class Visit>
  void each_element(int unit, Visit visit) {
    const UnitPlacement& here = place(unit);
    for (std::size_t p = 0; p < here.offset.size(); ++p) {
      const int index = table.units()[static_cast<std::size_t>(unit)].parameters[here.first_parameter + p];
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
      for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
        visit(index, i, segment_of(parameter.kind), here.offset[p] + i);
      }
    }
  }
  plugin::Fsdp::Gather format_of(int unit, UnitSegment which) const {
    if (place(unit).ranks == 1 || which == UnitSegment::fp32) return plugin::Fsdp::FP32;
    const bool experts = table.units()[static_cast<std::size_t>(unit)].kind == UnitKind::experts;
    return experts ? shape.config.gather_experts() : shape.config.gather_dense();
  }
  DType type_of(UnitSegment which) const { return which == UnitSegment::wire ? shape.compute : DType::f32; }
  void use(int index, const Item& item, const UnitUse& use) {
    const UnitViews views = fsdp->acquire(index, use.unit);
    EXPECT_EQ(static_cast<bool>(views.weights), use.needs_weights);
    EXPECT_EQ(static_cast<bool>(views.gradient), item.phase != Phase::forward);
    const bool experts = table.units()[static_cast<std::size_t>(use.unit)].kind == UnitKind::experts;
    EXPECT_TRUE(!views.write_gradient || (views.gradient && experts));
    for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
      const std::int64_t padded = place(use.unit).segment(which).padded;
      EXPECT_TRUE(!views.weights || views.weights[which].elements() == padded);
      EXPECT_TRUE(!views.weights || views.weights[which].dtype == type_of(which));
      EXPECT_TRUE(!views.gradient || views.gradient[which].elements() == padded);
    }
    compute().put([=, this, now = version, &item] {
      each_element(use.unit, [&](int parameter, std::int64_t i, UnitSegment which, std::int64_t at) {
        const float weight = views.weights ? value_of(views.weights[which], at) : 0;
        if (views.weights && wrong.empty() &&
            !is_rounded(weight, weight_of(parameter, i, now), format_of(use.unit, which), type_of(which))) {
          wrong = fmt::format("rank {} item {}: element {} of {} is {}", rank, index, i,
                              table.parameters()[static_cast<std::size_t>(parameter)].name, weight);
        }
        if (!views.gradient) return;
        float& gradient = views.gradient[which].as<float>()[at];
        gradient = (views.write_gradient ? 0.0f : gradient) + gradient_of(parameter, i, rank, item);
      });
    });
  }
  void run_item(const Schedule& schedule, int index) {
    const Item& item = schedule[static_cast<std::size_t>(index)];
    for (const UnitUse& u : item.units) use(index, item, u);
    for (const UnitUse& u : item.units) {
      if (item.phase != Phase::forward) fsdp->reduce(index, u.unit);
      fsdp->release(index, u.unit);
    }
  }
  void run(const Schedule& schedule) {
    fsdp->begin(schedule);
    for (int i = 0; i < static_cast<int>(schedule.size()); ++i) run_item(schedule, i);
    fsdp->finish();
    compute().put([this, fragments = fsdp->fragments()] {  // as an optimizer reads them: on the compute stream
      gradients.clear();
      for (const OwnedFragment& f : fragments) {
        std::vector<float>& values = gradients.emplace_back();
        for (std::int64_t i = 0; i < f.where.count; ++i) values.push_back(value_of(f.gradient, i));
      }
    });
    compute().synchronize();
  }
  // Does rank r add to the gradients of what this rank owns of a unit? Of experts only those of its own coordinate do:
  // the others' tokens have travelled to them.
  bool adds(int r, int unit) const {
    const bool experts = table.units()[static_cast<std::size_t>(unit)].kind == UnitKind::experts;
    return !experts || coordinates(shape.mesh, r).expert == coordinates(shape.mesh, rank).expert;
  }
  // Compares the owned gradients with plain sums over items and ranks.
  void expect_sums(const Schedule& schedule) {
    for (std::size_t n = 0; n < gradients.size(); ++n) {
      const OwnedFragment& f = fsdp->fragments()[n];
      for (std::int64_t i = 0; i < f.where.count; ++i) {
        float sum = 0;
        for (const Item& item : schedule) {
          if (item.phase == Phase::forward) continue;
          for (const UnitUse& u : item.units) {
            if (u.unit != f.where.unit) continue;
            for (int r = 0; r < shape.mesh.ranks(); ++r) {
              if (adds(r, u.unit)) sum += gradient_of(f.where.parameter, f.where.begin + i, r, item);
            }
          }
        }
        if (wrong.empty() && gradients[n][static_cast<std::size_t>(i)] != sum) {
          wrong = fmt::format("rank {}: gradient of element {} of {} is {}, not {}", rank, f.where.begin + i,
                              table.parameters()[static_cast<std::size_t>(f.where.parameter)].name,
                              gradients[n][static_cast<std::size_t>(i)], sum);
        }
      }
    }
  }
};

// Runs `body(Rank&)` on every rank of the world; ranks are started. Returns all ranks' logs.
template <class Body>
std::vector<std::vector<std::string>> in_world(const WorldShape& shape, Body body) {
  const ParameterTable table(make_model(shape.model));
  const Placement placement(table, shape.mesh);
  const auto meetings = [](int count, int size) {
    std::vector<std::unique_ptr<Meeting>> all;
    for (int i = 0; i < count; ++i) all.push_back(std::make_unique<Meeting>(size));
    return all;
  };
  const MeshShape& mesh = shape.mesh;
  const auto shards = meetings(mesh.replicate, mesh.shard), replicas = meetings(mesh.shard, mesh.replicate),
             expert_shards = meetings(mesh.replicate * mesh.expert, mesh.expert_shard()),
             nodes = meetings(mesh.ranks() / shape.node_ranks, shape.node_ranks);
  std::vector<std::vector<std::string>> logs(static_cast<std::size_t>(shape.mesh.ranks()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.mesh.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const MeshCoordinates at = coordinates(shape.mesh, rank);
      Rank mine(rank, shape, table, placement);
      mine.shard =
          std::make_unique<MeetingCommunicator>(*shards[at.replicate], at.shard, mine.log, "", shape.shared_memory);
      mine.replicate = std::make_unique<MeetingCommunicator>(*replicas[at.shard], at.replicate, mine.log);
      mine.expert_shard =
          std::make_unique<MeetingCommunicator>(*expert_shards[at.replicate * mesh.expert + at.expert], at.expert_shard,
                                                mine.log, "experts: ", shape.shared_memory);
      mine.node = std::make_unique<MeetingCommunicator>(*nodes[rank / shape.node_ranks], rank % shape.node_ranks,
                                                        mine.log, "node: ");
      mine.start();
      body(mine);
      EXPECT_EQ(mine.wrong, "");
      mine.fsdp.reset();
      logs[static_cast<std::size_t>(rank)] = std::move(mine.log);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return logs;
}

}  // namespace ananke::testing
