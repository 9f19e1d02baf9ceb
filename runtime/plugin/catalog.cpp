#include "runtime/plugin/catalog.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <system_error>

#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/plugin/note.h"
#include "runtime/plugin/search_path.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

fs::path resolved(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  return error ? fs::absolute(path, error) : canonical;
}

std::vector<fs::path> files_in(const fs::path& folder, std::string_view extension) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == extension) files.push_back(entry->path());
  }
  return files;
}

}  // namespace

std::vector<fs::path> plugin_search_path() {
  Folders folders = folders_in_variable("ANANKE_PLUGIN_PATH");
  folders.push_back(runtime_folder() / "ananke");
  return folders;
}

FoundPlugin read_plugin(const fs::path& file) {
  auto note = std::make_shared<PluginNote>(read_note(file));
  check_fingerprint(*note, file);
  return {resolved(file), std::move(note)};
}

std::string clash_between(const FoundPlugin& a, const FoundPlugin& b) {
  const auto sentence = [&](std::string_view what, const std::string& value) {
    return fmt::format(
        "{} and {} are two plugins with the same {} '{}'; take one of them out of the folders that are searched, or "
        "build it under another name (another name of its file is not enough)",
        a.file.string(), b.file.string(), what, value);
  };
  if (a.note->name() == b.note->name()) return sentence("name", a.note->name());
  if (!a.note->config_message().empty() && a.note->config_message() == b.note->config_message()) {
    return sentence("config message", a.note->config_message());
  }
  const std::vector<std::string> files = own_files(*b.note);
  for (const std::string& file : own_files(*a.note)) {
    if (std::find(files.begin(), files.end(), file) != files.end()) return sentence("proto file name", file);
  }
  return "";
}

PluginCatalog::PluginCatalog(const std::vector<fs::path>& folders) {
  std::set<fs::path> seen;
  for (const fs::path& folder : folders) {
    if (!seen.insert(resolved(folder)).second) continue;
    folders_.push_back(folder);
    scan(folder);
  }
  for (const fs::path& folder : folders_) {
    for (const fs::path& file : files_in(folder, ".missing")) read_missing(file);
  }
  refuse_clashes();
  std::sort(found_.begin(), found_.end(), [](auto& a, auto& b) { return a.note->name() < b.note->name(); });
  std::sort(refused_.begin(), refused_.end(), [](auto& a, auto& b) { return a.file < b.file; });
}

void PluginCatalog::scan(const fs::path& folder) {
  for (const fs::path& file : files_in(folder, ".so")) {
    const auto same = [&](const auto& known) { return known.file == resolved(file); };
    if (std::any_of(found_.begin(), found_.end(), same)) continue;  // a link into a folder that was already read
    std::string name, message;
    try {
      auto note = std::make_shared<PluginNote>(read_note(file));
      name = note->name();
      message = note->config_message();
      check_fingerprint(*note, file);
      found_.push_back({resolved(file), std::move(note)});
    } catch (const Error& refusal) {
      refused_.push_back({resolved(file), name, message, refusal.what()});
    }
  }
}

void PluginCatalog::read_missing(const fs::path& file) {
  const std::string name = file.stem().string();
  const auto known = [&](const std::string& other) { return other == name; };
  if (std::any_of(found_.begin(), found_.end(), [&](auto& plugin) { return known(plugin.note->name()); })) return;
  if (std::any_of(refused_.begin(), refused_.end(), [&](auto& plugin) { return known(plugin.name); })) return;
  std::ifstream in(file);
  std::string message, reason;
  std::getline(in, message);
  std::getline(in, reason);
  refused_.push_back({resolved(file), name, message, fmt::format("plugin '{}' was not built: {}", name, reason)});
}

void PluginCatalog::refuse_clashes() {
  std::vector<FoundPlugin> kept;
  for (const FoundPlugin& plugin : found_) {
    std::string reason;
    for (const FoundPlugin& other : found_) {
      if (&other != &plugin && reason.empty()) reason = clash_between(plugin, other);
    }
    if (reason.empty()) {
      kept.push_back(plugin);
    } else {
      refused_.push_back({plugin.file, plugin.note->name(), plugin.note->config_message(), reason});
    }
  }
  found_ = std::move(kept);
}

const FoundPlugin* PluginCatalog::find_by_name(std::string_view name) const {
  const auto it = std::find_if(found_.begin(), found_.end(), [&](auto& plugin) { return plugin.note->name() == name; });
  return it == found_.end() ? nullptr : &*it;
}

const FoundPlugin* PluginCatalog::find_by_message(std::string_view message) const {
  const auto it = std::find_if(found_.begin(), found_.end(),
                               [&](auto& plugin) { return plugin.note->config_message() == message; });
  return it == found_.end() || message.empty() ? nullptr : &*it;
}

}  // namespace ananke
