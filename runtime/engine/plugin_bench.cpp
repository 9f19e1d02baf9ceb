#include "runtime/engine/plugin_bench.h"

#include <chrono>
#include <cstring>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/comm/local_rendezvous.h"
#include "runtime/engine/guarded_roles.h"
#include "runtime/plugin/catalog.h"

namespace ananke {

PluginBench::PluginBench(const std::filesystem::path& job_file, const std::vector<std::string>& overrides)
    : site_(std::make_unique<Site>()) {
  JobOptions options;
  options.file = job_file;
  options.overrides = overrides;
  options.ranks = 1;
  options.plugin_folders = plugin_search_path();
  loaded_ = load_job(options);
  context_ = std::make_unique<RoleContext>(RoleContext{loaded_.job, *site_, {}, 0});
  for (const PluginFile& file : job().resolved().plugins()) plugins_.load(file.name(), file.path(), file.hash());
  roles_ = make_roles(job(), plugins_, *context_);
  if (roles_.experts) roles_.experts->use(operators());
  rendezvous_ = LocalWorld::create(1, std::chrono::seconds(10))->join(0);
  alone_ = roles_.backend->make_communicator("alone", std::vector<int>{0}, *rendezvous_);
  table_ = std::make_unique<ParameterTable>(job().model());
  placement_ = std::make_unique<Placement>(*table_, context_->mesh);
}

PluginBench::~PluginBench() = default;

StartContext PluginBench::start_context() {
  return {*roles_.backend, *table_, *placement_, {}, *alone_, *alone_, *alone_, *alone_, *alone_, *alone_};
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
  Buffer staging = device().host_memory().allocate(bytes, "test values (host)");
  Buffer buffer = device().memory().allocate(bytes, "test values");
  std::memcpy(staging.data(), values, bytes);
  device().copy(compute(), buffer.data(), staging.data(), bytes);
  compute().synchronize();
  return buffer;
}

std::vector<float> PluginBench::values(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  device().read(view, values.data());
  return values;
}

}  // namespace ananke
