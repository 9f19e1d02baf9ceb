// The optimizer's step with state in host memory, against what bounds it: the bytes that travel at the rate of the
// link, and what is computed. Prints the arithmetic. One GPU, or none.
//   resident_bench [--host-alone] JOB [PATH=VALUE...]   e.g. site/local/jobs/w2_resident.textproto model.num_experts=24
// The same job is measured with residence HOST and DEVICE, with its optimizers and with AdamW alone; then on the host
// backend, with two experts, eight heads and one layer, from which the time of the whole is reckoned by cost.
// --host-alone: residence HOST with the job's optimizers, nothing else.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/config/job.h"
#include "runtime/engine/initial_weights.h"
#include "runtime/engine/optimizer_rules.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/registry.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Overrides = std::vector<std::string>;

struct Measured {
  double update = 0;                 // seconds of a step, median
  double transform = 0;              // of Newton-Schulz alone
  double in = 0, out = 0;            // bytes of a step
  double rate_in = 0, rate_out = 0;  // bytes per second, both ways at once
  double elements = 0, cost = 0;     // of all that is updated; cost: of its matrices
  double link() const { return rate_in > 0 ? std::max(in / rate_in, out / rate_out) : 0; }
};

class Clock {
 public:
  explicit Clock(Device& device) : device_(device) {}
  template <class Work>
  double seconds(Work work) {
    settle();
    const auto begin = std::chrono::steady_clock::now();
    work();
    settle();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  template <class Work>
  double median(int times, Work work) {
    if (times > 1) work();  // warm
    std::vector<double> all;
    for (int i = 0; i < times; ++i) all.push_back(seconds(work));
    std::ranges::nth_element(all, all.begin() + std::ssize(all) / 2);
    return all[all.size() / 2];
  }

 private:
  void settle() {
    for (int i = 0; i < resource_count; ++i) device_.stream(static_cast<Resource>(i)).synchronize();
  }
  Device& device_;
};

// Large copies of pinned memory, one each way, at once.
void measure_link(Device& device, Clock& clock, Measured& measured) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  constexpr int times = 8;
  const Buffer there = device.host_memory().allocate(2 * bytes, "bench"),
               here = device.memory().allocate(2 * bytes, "bench");
  auto* host = static_cast<std::byte*>(there.data());
  auto* memory = static_cast<std::byte*>(here.data());
  const double seconds = clock.median(3, [&] {
    for (int i = 0; i < times; ++i) {
      device.copy(device.stream(Resource::host_to_device), memory, host, bytes);
      device.copy(device.stream(Resource::device_to_host), host + bytes, memory + bytes, bytes);
    }
  });
  measured.rate_in = measured.rate_out = static_cast<double>(times * bytes) / seconds;
}

// Of what the ranks' matrices need in a step, one round after the other, on numbers of no meaning.
double measure_transform(Engine& engine, const MatrixWork& work, Clock& clock, const TensorView& finite) {
  std::int64_t elements = 0;
  std::size_t workspace = 0;
  const OperatorSet& operators = engine.backend().operators();
  for (const MatrixRound& round : work.resident()) {
    elements = std::max(elements, round.matrices);
    for (const MatrixGroup& g : round.groups) {
      workspace = std::max(workspace, g.optimizer->transform_workspace(operators, g.count, g.rows, g.columns));
    }
  }
  if (elements == 0) return 0;
  Device& device = engine.device();
  const Buffer matrices = device.memory().allocate(static_cast<std::size_t>(elements) * sizeof(float), "bench");
  const Buffer room = device.memory().allocate(workspace, "bench");
  const TensorView flat = matrices.view(DType::f32, {elements});
  const OwnedFragment* source = nullptr;
  for (const OwnedFragment& one : engine.parameters().fragments()) {
    if (source == nullptr || one.where.count > source->where.count) source = &one;
  }
  for (std::int64_t at = 0; at < elements; at += source->where.count) {
    const TensorView to = flat.slice(at, std::min(source->where.count, elements - at));
    device.copy(engine.compute(), to.data, source->weight.data, to.bytes());
  }
  return clock.median(3, [&] {
    for (const MatrixRound& round : work.resident()) {
      for (const MatrixGroup& g : round.groups) {
        const TensorView batch =
            flat.slice(g.offset, g.count * g.rows * g.columns).reshaped({g.count, g.rows, g.columns});
        g.optimizer->transform(engine.compute(), operators, {batch, {room.data(), room.bytes()}, finite});
      }
    }
  });
}

HostState host_state(Engine& engine) {
  HostState host;
  for (int unit = 0; unit < static_cast<int>(engine.table().units().size()); ++unit) {
    host.places.push_back(engine.place_of(unit));
  }
  host.bucket_bytes = parse_bytes(engine.context().job.host_updates().bucket());
  host.square_sums = engine.parameters().square_sums();
  return host;
}

double moved(const Traffic& traffic, Resource resource) {
  double bytes = 0;
  for (const TrafficLine& line : traffic) bytes += line.resource == resource ? static_cast<double>(line.bytes) : 0;
  return bytes;
}

Measured measure_engine(Engine& engine) {
  const Job& job = engine.context().job;
  Device& device = engine.device();
  const auto fragments = engine.parameters().fragments();
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  initialise(device, engine.table(), fragments, job.training().seed(), job.model().initializer_range(), cores);
  for (const OwnedFragment& one : fragments) {
    device.copy(engine.compute(), one.gradient.data, one.weight.data, one.weight.bytes());
  }
  const std::vector<std::string> chosen = optimizer_of_each(job, engine.table());
  const MatrixWork work = make_matrix_work(engine, chosen);
  OptimizerStep step(engine.table(), chosen, engine.optimizers(), work, engine.backend(), engine.shard(),
                     engine.replicate(), fragments, host_state(engine));
  StepScalars scalars(engine.backend(), engine.world());
  scalars.begin(1, false);
  scalars.agree(0);
  Clock clock(device);
  Measured measured;
  std::uint64_t updates = 0;
  const auto update = [&] { step.update(scalars, ++updates, 1e-3); };
  measured.update = clock.median(engine.backend().computes_on_host() ? 1 : 5, update);
  measured.in = moved(step.traffic(), Resource::host_to_device) / static_cast<double>(updates);
  measured.out = moved(step.traffic(), Resource::device_to_host) / static_cast<double>(updates);
  for (const OwnedFragment& one : fragments) measured.elements += static_cast<double>(one.where.count);
  for (const MatrixWork::Assignment& one : work.assignments()) measured.cost += one.cost;
  if (measured.in == 0) return measured;
  measured.transform = measure_transform(engine, work, clock, scalars.finite());
  measure_link(device, clock, measured);
  return measured;
}

Measured measure(const std::filesystem::path& file, Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  for (const char* small : {"training.sequence_length=64", "training.rows_per_step=1", "training.rows_per_microbatch=1",
                            "plugins.fsdp.prefetch_blocks=0", "plugins.fsdp.reduce_blocks=0"}) {
    overrides.push_back(small);
  }
  const LoadedJob loaded = load_job({.file = file, .overrides = overrides, .ranks = 1});
  const Site site;
  std::optional<Measured> measured;
  run_rank_threads(1, std::chrono::seconds(60), [&](int rank, Rendezvous& rendezvous) {
    PluginRegistry plugins;
    for (const PluginFile& one : loaded.job.resolved().plugins()) plugins.load(one.name(), one.path(), one.hash());
    const RoleContext context{loaded.job, site, {1, 1}, rank};
    Engine engine(make_roles(loaded.job, plugins, context), context, rendezvous);
    engine.start(pass_limits(loaded.job));
    measured = measure_engine(engine);
  });
  return measured.value();
}

std::string report(const char* what, const Measured& m) {
  std::string text = fmt::format("{:<18} {:8.1f} ms, {:.2f} B parameters", what, 1e3 * m.update, 1e-9 * m.elements);
  if (m.in == 0) return text + "\n";
  const double bound = std::max(m.link(), m.transform);
  text += fmt::format(
      "\n  link: {:.2f} GB in at {:.1f} GB/s, {:.2f} GB out at {:.1f} GB/s (both ways at once): {:.1f} ms"
      "\n  Newton-Schulz alone: {:.1f} ms"
      "\n  {:.1f} / max({:.1f}, {:.1f}) = {:.2f} of what bounds it\n",
      1e-9 * m.in, 1e-9 * m.rate_in, 1e-9 * m.out, 1e-9 * m.rate_out, 1e3 * m.link(), 1e3 * m.transform, 1e3 * m.update,
      1e3 * m.link(), 1e3 * m.transform, m.update / bound);
  return text;
}

std::string ratios(const char* name, const Measured& host, const Measured& device, const Measured& processor,
                   bool by_cost) {
  const double share = by_cost ? host.cost / processor.cost : host.elements / processor.elements;
  const double whole = processor.update * share;
  return fmt::format(
      "{}: {:.2f} of the time with state on the device; on the processors {:.2f} s for a part, {:.1f} of which are the "
      "whole by {}: {:.2f} s, {:.1f} times as long\n",
      name, host.update / device.update, processor.update, share, by_cost ? "cost" : "elements", whole,
      whole / host.update);
}

// The job with the host's backend in the place of the GPU's.
std::filesystem::path on_processors(const std::filesystem::path& file, const std::filesystem::path& to) {
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string name = "ananke.plugin.BackendCuda";
  if (const std::size_t at = text.find(name); at != std::string::npos) {
    text.replace(at, name.size(), "ananke.plugin.BackendHost");
  }
  std::ofstream(to) << text;
  return to;
}

int run(const std::filesystem::path& file, const Overrides& overrides, bool host_alone) {
  const auto show = [](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  const Overrides on_host = {"plugins.fsdp.residence=HOST"}, on_device = {"plugins.fsdp.residence=DEVICE"};
  const auto with = [](Overrides a, const Overrides& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const Overrides adamw = {"optimizer[0].use=adamw"};
  const Overrides part = {"training.compute=FP32", "model.num_experts=2",         "model.num_experts_per_tok=2",
                          "model.num_hidden_layers=1", "model.num_attention_heads=8", "model.num_key_value_heads=8"};
  const TemporaryFolder folder;
  const std::filesystem::path there = on_processors(file, folder / "job.textproto");
  for (const bool muon : {true, false}) {
    const Overrides which = muon ? Overrides{} : adamw;
    const char* name = muon ? "Muon" : "AdamW";
    const Measured host = measure(file, overrides, with(on_host, which));
    show(report(fmt::format("{}, host", name).c_str(), host));
    if (host_alone) return 0;
    const Measured device = measure(file, overrides, with(on_device, which));
    show(report(fmt::format("{}, device", name).c_str(), device));
    const Measured processor = measure(there, overrides, with(with(on_device, which), part));
    show(report(fmt::format("{}, processors", name).c_str(), processor));
    show(ratios(name, host, device, processor, muon));
  }
  return 0;
}

}  // namespace
}  // namespace ananke

int main(int argc, char** argv) {
  const bool host_alone = argc > 1 && std::string_view(argv[1]) == "--host-alone";
  char** arguments = argv + (host_alone ? 2 : 1);
  if (arguments >= argv + argc) {
    std::fprintf(stderr, "resident_bench: name a job file: site/local/jobs/w2_resident.textproto [PATH=VALUE...]\n");
    return 2;
  }
  try {
    return ananke::run(*arguments, {arguments + 1, argv + argc}, host_alone);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resident_bench: %s\n", error.what());
    return 1;
  }
}
