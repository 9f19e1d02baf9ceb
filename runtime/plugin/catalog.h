// Which plugins there are: found by their notes on the search path, none loaded. What was refused is kept with the
// reason, so that a job that names it can be told why.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

class PluginNote;

struct FoundPlugin {
  std::filesystem::path file;              // absolute
  std::shared_ptr<const PluginNote> note;  // shared: a job's list outlives the catalog it was chosen from
};

struct RefusedPlugin {
  std::filesystem::path file;
  std::string name;     // empty where the note could not be read
  std::string message;  // likewise: its config message
  std::string reason;   // one sentence naming the file
};

class PluginCatalog {
 public:
  // Reads the notes of all *.so in the folders, in this order; a folder that does not exist is skipped. Two plugins of
  // one name, config message or proto file are both refused, naming each other. A file NAME.missing stands for a plugin
  // that this build left out (its config message, then the reason, a line each): refused, where no other has the name.
  explicit PluginCatalog(const std::vector<std::filesystem::path>& folders);

  const std::vector<std::filesystem::path>& folders() const { return folders_; }
  const std::vector<FoundPlugin>& found() const { return found_; }        // by name
  const std::vector<RefusedPlugin>& refused() const { return refused_; }  // by file

  // Null when there is none. Message is a full name: "ananke.plugin.AdamW".
  const FoundPlugin* find_by_name(std::string_view name) const;
  const FoundPlugin* find_by_message(std::string_view message) const;

 private:
  void scan(const std::filesystem::path& folder);
  void read_missing(const std::filesystem::path& file);
  void refuse_clashes();

  std::vector<std::filesystem::path> folders_;
  std::vector<FoundPlugin> found_;
  std::vector<RefusedPlugin> refused_;
};

// ANANKE_PLUGIN_PATH (folders separated by ':'), then the folder "ananke" beside libananke.
std::vector<std::filesystem::path> plugin_search_path();

// Reads and checks one file, as a job's `library:` names it. Throws Error(plugin).
FoundPlugin read_plugin(const std::filesystem::path& file);

// Why the two cannot be in one job, or empty: same name, config message, or proto file name (protobuf would abort the
// process). One sentence naming both files.
std::string clash_between(const FoundPlugin& a, const FoundPlugin& b);

}  // namespace ananke
