// For a plugin's own tests: a job's roles on one rank, loaded, built and guarded as in a run. Several ranks may be
// threads of the test (comm/rank_threads.h), each with a bench of its own.
//
//   PluginBench bench("job.textproto", {"plugins.lion.lr=0.5"});        what --set takes
//   Optimizer& lion = *bench.roles().optimizers.at("lion");
//   const Buffer weight = bench.place({1, 2, 3});
//   lion.update(bench.compute(), bench.operators(), {...});
//   EXPECT(bench.values(weight) == ...);
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/config/job.h"
#include "runtime/engine/engine.h"
#include "runtime/plugin/registry.h"

namespace ananke {

class PluginBench {
 public:
  // Plugins are looked for as `ananke run` does: `library:` of the job, ANANKE_PLUGIN_PATH, beside libananke.
  // Throws Error as `ananke run` refuses a job.
  explicit PluginBench(const std::filesystem::path& job_file, const std::vector<std::string>& overrides = {},
                       int ranks = 1, int rank = 0);
  ~PluginBench();

  const Job& job() const { return loaded_.job; }
  const RoleContext& context() const { return *context_; }
  EngineRoles& roles() { return roles_; }
  // Built like the others, since only rank 0 of a run has them.
  std::unique_ptr<Observer> make_observer(const std::string& name);
  StartContext start_context();  // of a mesh of one rank
  // Starts new role objects as a run does, with communicators and all memory; every rank calls it at the same time.
  // From then on they are the engine's, and roles() is empty.
  Engine& start(Rendezvous& rendezvous);

  Backend& backend() { return engine_ ? engine_->backend() : *roles_.backend; }
  Device& device() { return backend().device(); }
  Stream& compute() { return device().stream(Resource::compute); }
  const OperatorSet& operators() { return backend().operators(); }

  // Device memory that holds the values, f32 or i32.
  Buffer place(const std::vector<float>& values);
  Buffer place_integers(const std::vector<std::int32_t>& values);
  // Values into a f32 view of as many elements, and those of a view after all work on the compute stream.
  void write(const TensorView& view, const std::vector<float>& values);
  std::vector<float> values(const TensorView& view);

 private:
  void copy_in(void* to, const void* values, std::size_t bytes);
  Buffer place_bytes(const void* values, std::size_t bytes);
  LoadedJob loaded_;
  std::unique_ptr<Site> site_;
  std::unique_ptr<RoleContext> context_;
  PluginRegistry plugins_;
  EngineRoles roles_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<ParameterTable> table_;
  std::unique_ptr<Placement> placement_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ananke
