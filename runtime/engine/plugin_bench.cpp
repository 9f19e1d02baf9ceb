#include "runtime/engine/plugin_bench.h"

#include <chrono>
#include <cstring>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/comm/local_rendezvous.h"
#include "runtime/engine/guarded_roles.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/catalog.h"

namespace ananke {

PluginBench::PluginBench(const std::filesystem::path& job_file, const std::vector<std::string>& overrides, int ranks,
                         int rank)
    : site_(std::make_unique<Site>()) {
  JobOptions options;
  options.file = job_file;
  options.overrides = overrides;
  options.ranks = ranks;
  options.plugin_folders = plugin_search_path();
  loaded_ = load_job(options);
  context_ = std::make_unique<RoleContext>(RoleContext{loaded_.job, *site_, mesh_of(job().mesh()), rank, ranks});
  for (const PluginFile& file : job().resolved().plugins()) plugins_.load(file.name(), file.path(), file.hash());
  roles_ = make_roles(job(), plugins_, *context_);
  if (roles_.experts) roles_.experts->use(operators());
  table_ = std::make_unique<ParameterTable>(job().model());
  placement_ = std::make_unique<Placement>(*table_, context_->mesh);
}

PluginBench::~PluginBench() = default;

StartContext PluginBench::start_context() {
  ANANKE_CHECK(context_->mesh.ranks() == 1, "{} ranks need communicators of their own: start()",
               context_->mesh.ranks());
  if (!alone_) {
    rendezvous_ = LocalWorld::create(1, std::chrono::seconds(10))->join(0);
    alone_ = roles_.backend->make_communicator("alone", std::vector<int>{0}, *rendezvous_);
  }
  return {*roles_.backend, *table_, *placement_, {}, *alone_, *alone_, *alone_, *alone_, *alone_, *alone_};
}

Engine& PluginBench::start(Rendezvous& rendezvous) {
  alone_.reset();
  roles_ = {};
  engine_ = std::make_unique<Engine>(make_roles(job(), plugins_, *context_), *context_, rendezvous);
  engine_->start(pass_limits(job()));
  return *engine_;
}

std::unique_ptr<Observer> PluginBench::make_observer(const std::string& name) {
  auto all = make_observers(job(), plugins_, *context_);
  const auto found = all.find(name);
  if (found == all.end()) {
    fail(ErrorKind::config, "the job has no observer '{}' among its {}; name it under plugins", name, all.size());
  }
  return std::move(found->second);
}

Buffer PluginBench::place(const std::vector<float>& values) {
  return place_bytes(values.data(), values.size() * sizeof(float));
}

Buffer PluginBench::place_integers(const std::vector<std::int32_t>& values) {
  return place_bytes(values.data(), values.size() * sizeof(std::int32_t));
}

Buffer PluginBench::place_bytes(const void* values, std::size_t bytes) {
  Buffer buffer = device().memory().allocate(bytes, "test values");
  copy_in(buffer.data(), values, bytes);
  return buffer;
}

void PluginBench::write(const TensorView& view, const std::vector<float>& values) {
  ANANKE_CHECK(view.dtype == DType::f32 && view.elements() == static_cast<std::int64_t>(values.size()),
               "{} values into {} {}", values.size(), name_of(view.dtype), to_string(view.shape));
  copy_in(view.data, values.data(), view.bytes());
}

void PluginBench::copy_in(void* to, const void* values, std::size_t bytes) {
  Buffer staging = device().host_memory().allocate(bytes, "test values (host)");
  if (bytes != 0) std::memcpy(staging.data(), values, bytes);
  device().copy(compute(), to, staging.data(), bytes);
  compute().synchronize();
}

std::vector<float> PluginBench::values(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  device().read(view, values.data());
  return values;
}

}  // namespace ananke
