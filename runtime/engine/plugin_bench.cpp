#include "runtime/engine/plugin_bench.h"

#include <cstring>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
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
  if (roles_.experts) roles_.experts->start(operators());
}

PluginBench::~PluginBench() = default;

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
