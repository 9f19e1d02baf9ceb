#include "runtime/plugin/registry.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <google/protobuf/descriptor.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <mutex>

#include "ananke/plugin.pb.h"
#include "runtime/base/hash.h"
#include "runtime/plugin/note.h"

namespace ananke {
namespace {

// dlerror's text with every mangled C++ name followed by what it means.
std::string demangled(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    const std::string word = text.substr(i, std::max<std::size_t>(end - i, 1));
    result += word;
    if (word.starts_with("_Z")) {
      int status = 0;
      std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(word.c_str(), nullptr, nullptr, &status),
                                                  std::free);
      if (name) result += fmt::format(" ({})", name.get());
    }
    i += word.size();
  }
  return result;
}

// protobuf aborts the process when a file or message name is registered twice, so this comes before dlopen.
void check_protobuf_names(const PluginNote& note, const std::string& file) {
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const auto& proto : note.files().file()) {
    const bool own = !proto.name().starts_with("google/protobuf/") && !proto.name().starts_with("ananke/");
    if (!own) continue;
    if (pool->FindFileByName(proto.name()) != nullptr) {
      fail(ErrorKind::plugin,
           "{} cannot be loaded: its proto file name '{}' is already taken in this process by another "
           "plugin or program; rename one",
           file, proto.name());
    }
    for (const auto& message : proto.message_type()) {
      const std::string full = proto.package().empty() ? message.name() : proto.package() + "." + message.name();
      const auto* known = pool->FindMessageTypeByName(full);
      if (known != nullptr) {
        fail(ErrorKind::plugin,
             "{} cannot be loaded: its message '{}' is already taken in this process, by proto file {}; "
             "rename one",
             file, full, known->file()->name());
      }
    }
  }
}

// The plugin's own code runs here for the first time: its libraries' and its own static initialisers.
const PluginDescriptorV1* open_library(const PluginNote& note, const std::string& file, const PluginGuard& guard) {
  static std::mutex one_at_a_time;  // protobuf's names and dlopen are process-wide: check and load as one
  const std::lock_guard lock(one_at_a_time);
  const PluginScope scope(guard.call_of("its static initialisers"));
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) {
    check_protobuf_names(note, file);
    handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    const char* reason = dlerror();
    fail(ErrorKind::plugin, "plugin '{}' cannot be loaded: {}; rebuild it with this ananke, or install what it needs",
         note.name(), demangled(reason ? reason : file + ": the dynamic loader gave no reason"));
  }
  void* symbol = dlsym(handle, plugin_entry_symbol);
  if (symbol == nullptr) {
    fail(ErrorKind::plugin, "{} has a plugin note but no entry point {}; its source must end in ANANKE_PLUGIN(...)",
         file, plugin_entry_symbol);
  }
  return reinterpret_cast<PluginEntryV1>(symbol)();
}

void compare_with_note(const PluginDescriptorV1* descriptor, const PluginNote& note, const std::string& file) {
  if (descriptor == nullptr) fail(ErrorKind::plugin, "{}: its entry point returns no descriptor", file);
  if (descriptor->struct_size != sizeof(PluginDescriptorV1)) {
    fail(ErrorKind::plugin, "{} has a descriptor of {} bytes, this program one of {}; rebuild the plugin", file,
         descriptor->struct_size, sizeof(PluginDescriptorV1));
  }
  const std::array<std::tuple<const char*, const char*, const std::string*>, 6> fields = {{
      {"role", descriptor->role, &note.role()},
      {"name", descriptor->name, &note.name()},
      {"version", descriptor->version, &note.version()},
      {"fingerprint", descriptor->fingerprint, &note.fingerprint()},
      {"config message", descriptor->config_message, &note.config_message()},
      {"description", descriptor->description, &note.description()},
  }};
  for (const auto& [what, of_descriptor, of_note] : fields) {
    if (of_descriptor == nullptr || *of_note != of_descriptor) {
      fail(ErrorKind::plugin, "{}: its descriptor has {} '{}', its note '{}'; rebuild the plugin", file, what,
           of_descriptor ? of_descriptor : "(none)", *of_note);
    }
  }
}

}  // namespace

void PluginRegistry::load(const std::string& name, const std::filesystem::path& file, const std::string& hash) {
  const auto known = plugins_.find(name);
  if (known != plugins_.end()) {
    if (known->second.file == file) return;
    fail(ErrorKind::plugin, "{} and {} are two plugins with the same name '{}'; name one of them in the job",
         known->second.file.string(), file.string(), name);
  }
  const PluginNote note = read_note(file);
  check_fingerprint(note, file);
  if (note.name() != name) {
    fail(ErrorKind::plugin, "{} is plugin '{}', but the job says that it is '{}'", file.string(), note.name(), name);
  }
  if (!hash.empty()) {
    const std::string found = hash_file(file);
    if (found != hash) {
      fail(ErrorKind::plugin,
           "{} differs from the file the launcher saw: plugin '{}' has hash {} here, {} there; install the "
           "same build on every node",
           file.string(), name, found, hash);
    }
  }
  const PluginDescriptorV1* descriptor =
      open_library(note, file.string(), PluginGuard(note.role(), name, file.string(), trail_));
  compare_with_note(descriptor, note, file.string());
  plugins_[name] = {file, descriptor};
  order_.push_back(name);
}

std::vector<std::string> PluginRegistry::names(std::string_view role) const {
  std::vector<std::string> result;
  for (const std::string& name : order_) {
    if (role.empty() || role == plugins_.at(name).descriptor->role) result.push_back(name);
  }
  return result;
}

const PluginRegistry::Loaded& PluginRegistry::loaded(const std::string& name) const {
  const auto it = plugins_.find(name);
  if (it == plugins_.end())
    fail(ErrorKind::internal, "plugin '{}' was not loaded; {} others were", name, plugins_.size());
  return it->second;
}

const PluginDescriptorV1& PluginRegistry::descriptor(const std::string& name) const { return *loaded(name).descriptor; }

PluginGuard PluginRegistry::guard(const std::string& name) const {
  const Loaded& plugin = loaded(name);
  return PluginGuard(plugin.descriptor->role, name, plugin.file.string(), trail_);
}

void* PluginRegistry::create_object(const std::string& name, std::string_view role, const void* context,
                                    std::string_view config) const {
  const Loaded& plugin = loaded(name);
  if (role != plugin.descriptor->role) {
    fail(ErrorKind::config, "plugin '{}' ({}) has role '{}', but is used as '{}'", name, plugin.file.string(),
         plugin.descriptor->role, role);
  }
  std::array<char, 4096> message{};
  void* object = nullptr;
  const PluginCallPtr call = guard(name).call_of("its constructor");
  const int result = run_inside(call, [&] {
    return plugin.descriptor->create(context, config.data(), config.size(), &object, message.data(), message.size());
  });
  if (result == 0 && object != nullptr) return object;
  const bool known = std::string_view(name_of(static_cast<ErrorKind>(result))) != "unknown";
  throw PluginError(
      known ? static_cast<ErrorKind>(result) : ErrorKind::plugin,
      fmt::format("{}: {}", call->text, message[0] ? message.data() : "it built no object and gave no reason"));
}

}  // namespace ananke
