#include "runtime/config/plugins.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/nearest.h"
#include "runtime/config/validate.h"
#include "runtime/plugin/search_path.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

// A job has one plugin of these roles; of the others as many as it names.
constexpr std::array<std::string_view, 5> single_roles = {"backend", "parameters", "experts", "activations", "batches"};
constexpr std::array<std::string_view, 4> other_roles = {"kernels", "optimizer", "check", "observer"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> built_in = {
    {{"backend", "backend_host"}, {"parameters", "fsdp"}}};

bool is_single(std::string_view role) {
  return std::find(single_roles.begin(), single_roles.end(), role) != single_roles.end();
}

bool is_role(std::string_view role) {
  return is_single(role) || std::find(other_roles.begin(), other_roles.end(), role) != other_roles.end();
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

const FoundPlugin* plugin_of_library(const Schema& schema, const std::string& library) {
  const auto& plugins = schema.plugins();
  const auto it = std::find_if(plugins.begin(), plugins.end(), [&](auto& one) { return same_file(one.file, library); });
  return it == plugins.end() ? nullptr : &*it;
}

// Completes entries one by one, collecting what is wrong with them.
class Completion {
 public:
  Completion(const PluginsAtHand& at_hand, Job* job) : at_hand_(at_hand), job_(job) {}

  Problems run() {
    for (int i = 0; i < job_->plugins_size(); ++i) complete(i);
    for (int i = 0; i < job_->optimizer_size(); ++i) add_optimizer(i);
    for (const auto& [role, name] : built_in) add_built_in(role, name);
    if (job_->mesh().expert() > 1 && has_moe_layer(job_->model()) && !role_holder_.contains("experts")) {
      add("mesh.expert",
          "is {}, which needs a plugin of role experts that exchanges tokens; add plugins {{ use: \"ep\" }}",
          job_->mesh().expert());
    }
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void add(std::string path, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({std::move(path), fmt::format(text, std::forward<Args>(args)...)});
  }

  const FoundPlugin* find(const PluginUse& entry, const std::string& path);
  void complete(int index);
  void note_use(const FoundPlugin& plugin, const std::string& path);
  void append(const FoundPlugin& plugin, const std::string& path);
  void add_optimizer(int index);
  void add_built_in(std::string_view role, std::string_view name);

  const PluginsAtHand& at_hand_;
  Job* job_;
  Problems problems_;
  std::set<std::string> used_;
  std::map<std::string, std::string> role_holder_;  // role -> plugin, where a job has one
};

const FoundPlugin* Completion::find(const PluginUse& entry, const std::string& path) {
  const Schema& schema = at_hand_.schema;
  const FoundPlugin* by_library = entry.library().empty() ? nullptr : plugin_of_library(schema, entry.library());
  const FoundPlugin* by_message = schema.plugin_of_message(message_of_url(entry.config().type_url()));
  if (by_library == nullptr && by_message == nullptr && entry.use().empty()) {
    add(path, "names no plugin; write use: \"adamw\" or config {{ [ananke/ananke.plugin.AdamW] {{ }} }}");
    return nullptr;
  }
  const FoundPlugin* by_name = entry.use().empty() ? nullptr : schema.plugin(entry.use());
  if (!entry.use().empty() && by_name == nullptr) {
    add(path + ".use", "{}", at_hand_.why_missing(entry.use()));
    return nullptr;
  }
  const FoundPlugin* plugin = by_name ? by_name : by_library ? by_library : by_message;
  if (by_library != nullptr && by_library != plugin) {
    add(path + ".library", "{} is plugin '{}', but use says '{}'; make them agree", entry.library(),
        by_library->note->name(), plugin->note->name());
  } else if (by_message != nullptr && by_message != plugin) {
    add(path + ".config", "is a {}, the message of plugin '{}', but the entry is for plugin '{}'; make them agree",
        by_message->note->config_message(), by_message->note->name(), plugin->note->name());
  } else {
    return plugin;
  }
  return nullptr;
}

void Completion::complete(int index) {
  PluginUse* entry = job_->mutable_plugins(index);
  const std::string path = fmt::format("plugins[{}]", index);
  const FoundPlugin* plugin = find(*entry, path);
  if (plugin == nullptr) return;
  entry->set_use(plugin->note->name());
  if (!plugin->note->config_message().empty() && entry->config().type_url().empty()) {
    entry->mutable_config()->set_type_url(type_url(plugin->note->config_message()));
  }
  note_use(*plugin, path);
}

void Completion::note_use(const FoundPlugin& plugin, const std::string& path) {
  const std::string& name = plugin.note->name();
  const std::string& role = plugin.note->role();
  if (!used_.insert(name).second) add(path, "names plugin '{}' a second time; keep one entry", name);
  if (!is_role(role)) {
    add(path, "plugin '{}' has role '{}', which this ananke does not know; there are: {}, {}", name, role,
        fmt::join(single_roles, ", "), fmt::join(other_roles, ", "));
  }
  if (!is_single(role)) return;
  const auto [holder, first] = role_holder_.emplace(role, name);
  if (!first && holder->second != name) {
    add(path, "plugin '{}' has role '{}', as plugin '{}' has; a job has one, remove the other", name, role,
        holder->second);
  }
}

void Completion::append(const FoundPlugin& plugin, const std::string& path) {
  PluginUse* entry = job_->add_plugins();
  entry->set_use(plugin.note->name());
  if (!plugin.note->config_message().empty()) {
    entry->mutable_config()->set_type_url(type_url(plugin.note->config_message()));
  }
  note_use(plugin, path);
}

void Completion::add_optimizer(int index) {
  const std::string& name = job_->optimizer(index).use();
  const std::string path = fmt::format("optimizer[{}].use", index);
  const FoundPlugin* plugin = at_hand_.schema.plugin(name);
  if (plugin == nullptr) {
    add(path, "{}", at_hand_.why_missing(name, "optimizer"));
  } else if (plugin->note->role() != "optimizer") {
    add(path, "is plugin '{}', whose role is '{}', not optimizer{}", name, plugin->note->role(),
        suggestion(name, at_hand_.schema.plugin_names("optimizer")));
  } else if (!used_.contains(name)) {
    append(*plugin, path);
  }
}

void Completion::add_built_in(std::string_view role, std::string_view name) {
  if (role_holder_.contains(std::string(role))) return;
  const FoundPlugin* plugin = at_hand_.schema.plugin(name);
  if (plugin == nullptr) {
    add("plugins", "name no plugin of role '{}', and the built-in one: {}", role, at_hand_.why_missing(name));
  } else {
    append(*plugin, "plugins");
  }
}

}  // namespace

std::string PluginsAtHand::why_missing(std::string_view name, std::string_view role) const {
  for (const RefusedPlugin& plugin : schema.refused()) {
    if (plugin.name == name || plugin.file.stem() == name) {
      return fmt::format("plugin '{}' was found but refused: {}", name, plugin.reason);
    }
  }
  return fmt::format("there is no plugin '{}' in {}{}", name, list_of(folders),
                     suggestion(name, schema.plugin_names(role)));
}

std::unique_ptr<PluginsAtHand> find_plugins(const std::vector<fs::path>& libraries,
                                            const std::vector<fs::path>& folders) {
  auto at_hand = std::make_unique<PluginsAtHand>();
  std::vector<FoundPlugin> chosen;
  for (const fs::path& library : libraries) {
    FoundPlugin plugin = read_plugin(library);
    const auto clash =
        std::find_if(chosen.begin(), chosen.end(), [&](auto& other) { return !clash_between(plugin, other).empty(); });
    if (clash != chosen.end()) {
      if (clash->file == plugin.file) continue;
      fail(ErrorKind::plugin, "{}", clash_between(*clash, plugin));
    }
    at_hand->schema.add(plugin);
    chosen.push_back(std::move(plugin));
  }
  const PluginCatalog catalog(folders);
  for (const RefusedPlugin& plugin : catalog.refused()) at_hand->schema.add_refused(plugin);
  at_hand->folders = catalog.folders();
  for (const FoundPlugin& plugin : catalog.found()) {
    if (std::any_of(chosen.begin(), chosen.end(), [&](auto& other) { return !clash_between(plugin, other).empty(); }))
      continue;
    try {
      at_hand->schema.add(plugin);
    } catch (const Error& refusal) {
      at_hand->schema.add_refused({plugin.file, plugin.note->name(), plugin.note->config_message(), refusal.what()});
    }
  }
  return at_hand;
}

Problems complete_plugins(const PluginsAtHand& at_hand, Job* job) { return Completion(at_hand, job).run(); }

void resolve_plugins(const PluginsAtHand& at_hand, Job* job) {
  job->mutable_resolved()->clear_plugins();
  for (const PluginUse& entry : job->plugins()) {
    const FoundPlugin* plugin = at_hand.schema.plugin(entry.use());
    PluginFile* file = job->mutable_resolved()->add_plugins();
    file->set_name(plugin->note->name());
    file->set_role(plugin->note->role());
    file->set_path(plugin->file.string());
    file->set_hash(hash_file(plugin->file));
  }
}

}  // namespace ananke
