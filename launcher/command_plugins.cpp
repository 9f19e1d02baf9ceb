// `ananke plugins`: what is found on the search path, and what was refused and why. `ananke plugins info FILE`: what a
// plugin's note says, its config's fields included. Nothing is loaded.
#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>

#include "ananke/plugin.pb.h"
#include "launcher/arguments.h"
#include "launcher/command.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/config/describe.h"
#include "runtime/config/schema.h"
#include "runtime/plugin/note.h"
#include "runtime/plugin/search_path.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

// True where --help was asked for, after printing it.
bool read_words(const std::vector<std::string>& words, const char* usage, std::string* file) {
  po::options_description options("options");
  options.add_options()("help,h", "print this");
  po::positional_options_description positions;
  if (file != nullptr) {
    options.add_options()("file", po::value(file), "a plugin's file, or the name of one on the search path");
    positions.add("file", 1);
  }
  po::variables_map values;
  read_arguments(words, options, positions, &values);
  if (values.count("help") != 0) std::printf("%s", usage);
  return values.count("help") != 0;
}

std::filesystem::path find_plugin_file(const std::string& word) {
  if (word.find('/') != std::string::npos || std::filesystem::exists(word)) return word;
  const PluginCatalog catalog(plugin_search_path());
  if (const FoundPlugin* plugin = catalog.find_by_name(word)) return plugin->file;
  std::vector<std::string> names;
  for (const FoundPlugin& plugin : catalog.found()) names.push_back(plugin.note->name());
  for (const RefusedPlugin& plugin : catalog.refused()) {
    if (plugin.name == word) return plugin.file;
  }
  fail(ErrorKind::plugin, "there is neither a file nor a plugin '{}'{}", word, suggestion(word, names));
}

}  // namespace

int command_plugins(const std::vector<std::string>& words) {
  if (read_words(words,
                 "usage: ananke plugins\n       ananke plugins info FILE\n\nLists the plugins found in "
                 "ANANKE_PLUGIN_PATH and beside the runtime.\n",
                 nullptr)) {
    return 0;
  }
  const PluginCatalog catalog(plugin_search_path());
  std::printf("plugins in %s:\n", list_of(catalog.folders()).c_str());
  std::size_t width = 4;
  for (const FoundPlugin& plugin : catalog.found()) width = std::max(width, plugin.note->name().size());
  for (const FoundPlugin& plugin : catalog.found()) {
    std::fputs(
        fmt::format("  {:<{}}  {:<11}  {:<6}  {}\n  {:<{}}  {}\n", plugin.note->name(), width, plugin.note->role(),
                    plugin.note->version(), plugin.note->description(), "", width, plugin.file.string())
            .c_str(),
        stdout);
  }
  if (catalog.found().empty()) std::printf("  none\n");
  if (!catalog.refused().empty()) std::printf("refused:\n");
  for (const RefusedPlugin& plugin : catalog.refused()) std::printf("  %s\n", plugin.reason.c_str());
  return 0;
}

int command_plugins_info(const std::vector<std::string>& words) {
  std::string word;
  if (read_words(words, "usage: ananke plugins info FILE\n\nFILE is a plugin's .so, or a plugin's name.\n", &word))
    return 0;
  if (word.empty()) fail(ErrorKind::usage, "name the plugin: ananke plugins info FILE");
  const std::filesystem::path file = find_plugin_file(word);
  const auto note = std::make_shared<const PluginNote>(read_note(file));
  std::string text =
      fmt::format("{} {}: {}\n  role         {}\n  file         {}\n  fingerprint  {}\n", note->name(), note->version(),
                  note->description(), note->role(), file.string(), note->fingerprint());
  if (note->fingerprint() != runtime_fingerprint()) {
    text += fmt::format("  refused      this program was built by {}; rebuild the plugin\n", runtime_fingerprint());
  }
  if (note->config_message().empty()) {
    text += "  config       none\n";
  } else {
    Schema schema;
    schema.add({file, note});
    const auto* message = schema.config_of(*schema.plugin(note->name()));
    text += fmt::format("  config       config {{ [{}] {{ ... }} }}\n\n", type_url(note->config_message()));
    if (const std::string comment = comment_of(message); !comment.empty()) text += comment + "\n\n";
    text += describe_fields(message, 2);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace ananke
