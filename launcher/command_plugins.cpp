// `ananke plugins`: what is found on the search path, and what was refused and why. `ananke plugins info PLUGIN`: what
// a plugin's note says, how a job names it, and its config's fields. Nothing is loaded.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "ananke/plugin.pb.h"
#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/config/describe.h"
#include "runtime/config/schema.h"
#include "runtime/plugin/note.h"
#include "runtime/plugin/search_path.h"

namespace ananke {
namespace {

std::filesystem::path find_plugin_file(const std::string& word) {
  if (word.find('/') != std::string::npos || std::filesystem::exists(word)) return word;
  const PluginCatalog catalog(plugin_search_path());
  if (const FoundPlugin* plugin = catalog.find_by_name(word)) return plugin->file;
  std::vector<std::string> names;
  for (const FoundPlugin& plugin : catalog.found()) names.push_back(plugin.note->name());
  for (const RefusedPlugin& plugin : catalog.refused()) {
    if (plugin.name == word || plugin.file.stem() == word) return plugin.file;  // reading it says why
  }
  fail(ErrorKind::plugin, "there is neither a file nor a plugin '{}'{}", word, suggestion(word, names));
}

// Why a job could not use the file, or empty.
std::string why_refused(const std::filesystem::path& file, const PluginNote& note) {
  try {
    check_fingerprint(note, file);
  } catch (const Error& error) {
    return error.what();
  }
  const PluginCatalog catalog(plugin_search_path());
  std::error_code ignored;
  for (const RefusedPlugin& plugin : catalog.refused()) {
    if (std::filesystem::equivalent(plugin.file, file, ignored)) return plugin.reason;
  }
  return "";
}

// "" or what the plugin would lack on this machine.
std::string what_is_missing(const PluginNote& note) {
  if (note.needs().empty()) return "";
  if (void* library = dlopen(note.needs().c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(library);
    return "";
  }
  return fmt::format("this machine has no {}: jobs can be checked and planned here, not run", note.needs());
}

// How a job file names the plugin, with all defaults and with a value of its config; `config` is null where it has
// none.
std::string in_a_job(const PluginNote& note, const google::protobuf::Descriptor* config) {
  std::string text = note.role() == "optimizer"
                         ? fmt::format("  in a job     optimizer {{ match: \".*\" use: \"{}\" }}\n", note.name())
                     : note.role() == "check"
                         ? std::string("  in a job     none names it; `ananke health` makes its checks\n")
                         : fmt::format("  in a job     plugins {{ use: \"{}\" }}\n", note.name());
  if (config == nullptr) return text + "  config       none\n";
  std::string example;
  for (int i = 0; i < config->field_count() && example.empty(); ++i) {
    const google::protobuf::FieldDescriptor* field = config->field(i);
    if (field->is_repeated() || field->message_type() != nullptr) continue;
    example = fmt::format("{}: {}", field->name(), default_of(field));
    text += fmt::format("  on the line  --set plugins.{}.{}={}\n", note.name(), field->name(), default_of(field));
  }
  text += fmt::format("  config       plugins {{ config {{ [{}] {{ {}{}}} }} }}\n", type_url(config->full_name()),
                      example, example.empty() ? "" : " ");
  return text;
}

}  // namespace

int command_plugins(const Arguments& arguments) {
  bool names = false;
  CommandOptions options("plugins", "[options]",
                         "Lists the plugins found in ANANKE_PLUGIN_PATH and beside the runtime, and the files refused\n"
                         "with the reason. None is loaded.");
  options.add()("names", boost::program_options::bool_switch(&names), "print names only, one a line");
  if (!options.read(arguments)) return 0;
  const PluginCatalog catalog(plugin_search_path());
  if (names) {
    for (const FoundPlugin& plugin : catalog.found()) std::printf("%s\n", plugin.note->name().c_str());
    return 0;
  }
  std::printf("plugins in %s:\n", list_of(catalog.folders()).c_str());
  std::size_t width = 4;
  for (const FoundPlugin& plugin : catalog.found()) width = std::max(width, plugin.note->name().size());
  for (const FoundPlugin& plugin : catalog.found()) {
    std::fputs(
        fmt::format("  {:<{}}  {:<11}  {:<6}  {}\n  {:<{}}  {}\n", plugin.note->name(), width, plugin.note->role(),
                    plugin.note->version(), plugin.note->description(), "", width, plugin.file.string())
            .c_str(),
        stdout);
    if (const std::string missing = what_is_missing(*plugin.note); !missing.empty()) {
      std::fputs(fmt::format("  {:<{}}  {}\n", "", width, missing).c_str(), stdout);
    }
  }
  if (catalog.found().empty()) std::printf("  none\n");
  if (!catalog.refused().empty()) std::printf("refused:\n");
  for (const RefusedPlugin& plugin : catalog.refused()) std::printf("  %s\n", plugin.reason.c_str());
  return 0;
}

int command_plugins_info(const Arguments& arguments) {
  std::string word;
  CommandOptions options(
      "plugins info", "PLUGIN",
      "Describes a plugin, by its name or its .so file: what it does, what it was built with, why it\n"
      "is refused if it is, how a job names it, and every field of its config with default, limits\n"
      "and meaning. It is not loaded.");
  options.word("PLUGIN", word);
  if (!options.read(arguments)) return 0;
  const std::filesystem::path file = find_plugin_file(word);
  const auto note = std::make_shared<const PluginNote>(read_note(file));
  std::string text = fmt::format(
      "{} {}: {}\n  role         {}, see runtime/roles/{}.h\n  file         {}\n  built with   {}\n", note->name(),
      note->version(), note->description(), note->role(), note->role(), file.string(), note->fingerprint());
  if (const std::string reason = why_refused(file, *note); !reason.empty()) {
    text += fmt::format("  refused      {}\n", reason);
  }
  if (const std::string missing = what_is_missing(*note); !missing.empty()) {
    text += fmt::format("  here         {}\n", missing);
  }
  Schema schema;
  schema.add({file, note});
  const auto* message = schema.config_of(*schema.plugin(note->name()));
  text += in_a_job(*note, message);
  if (message != nullptr) {
    if (const std::string comment = comment_of(message); !comment.empty()) text += "\n" + comment + "\n";
    text += "\n" + describe_fields(message, 2);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace ananke
