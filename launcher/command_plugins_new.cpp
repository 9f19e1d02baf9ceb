// `ananke plugins new NAME --role ROLE`: a plugin of one's own, outside this tree, from plugins/templates. Every file
// there is copied, with NAME in file names and @NAME@, @CLASS@, ... in the text replaced.
#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/base/read_file.h"
#include "runtime/plugin/catalog.h"
#include "runtime/plugin/search_path.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

struct Role {
  const char* name;
  const char* description;  // of what its template does; null: it has none, since this version uses no such plugins
  const char* mesh = "";    // line of its template's job
  bool in_jobs = true;      // a job uses it; else it is alone, without one
};

constexpr std::array<Role, 9> roles = {{
    {"optimizer", "SGD with momentum"},
    {"observer", "steps as lines of comma-separated values"},
    {"batches", "one document a row"},
    {"activations", "block inputs wait in host memory"},
    {"experts", "the built-in local experts, watched"},
    {"parameters", "plain data parallelism", "mesh { replicate: 2 shard: 1 }\n"},
    {"backend", "the host backend with an operator of its own"},
    {"check", "how busy a node is before a job", "", false},
    {"kernels", nullptr},
}};

std::string offered_roles(const char* between) {
  std::string list;
  for (const Role& role : roles) {
    if (role.description != nullptr) list += (list.empty() ? "" : between) + std::string(role.name);
  }
  return list;
}

const Role& role_of(const std::string& name) {
  std::vector<std::string> known;
  for (const Role& role : roles) {
    if (role.name == name && role.description != nullptr) return role;
    if (role.name == name) {
      fail(ErrorKind::usage,
           "this version uses no plugins of role {}; operators come from the backend, see --role backend", name);
    }
    known.emplace_back(role.name);
  }
  fail(ErrorKind::usage, "'{}' is no role{}; templates are there for {}", name, suggestion(name, known),
       offered_roles(", "));
}

// "my_lion" -> "MyLion".
std::string class_name(const std::string& name) {
  std::string text;
  bool upper = true;
  for (char c : name) {
    if (c != '_') text += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = c == '_';
  }
  return text;
}

void check_name(const std::string& name) {
  const bool plain = !name.empty() && name[0] >= 'a' && name[0] <= 'z' &&
                     name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (!plain || name.size() > 64) {
    fail(ErrorKind::usage,
         "'{}' is no name for a plugin; take at most 64 lower-case letters, digits and _, a letter first", name);
  }
  const PluginCatalog catalog(plugin_search_path());
  const FoundPlugin* same = catalog.find_by_name(name);
  if (same == nullptr) same = catalog.find_by_message("ananke.plugin." + class_name(name));
  if (same != nullptr) {
    fail(ErrorKind::usage, "there is a plugin of that name or config message already: {}; choose another name",
         same->file.string());
  }
}

fs::path templates_folder() {
  const std::array<fs::path, 2> candidates = {runtime_folder() / "../share/ananke/templates",  // <prefix>/lib
                                              runtime_folder() / "../../plugins/templates"};   // <source>/build/lib
  for (const fs::path& folder : candidates) {
    std::error_code error;
    if (fs::is_directory(folder / "common", error)) return fs::canonical(folder, error);
  }
  fail(ErrorKind::resource, "the plugin templates are neither in {} nor in {}; install ananke again",
       candidates[0].lexically_normal().string(), candidates[1].lexically_normal().string());
}

using Words = std::map<std::string, std::string>;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Of plugins that jobs use.
bool is_of_a_job(const fs::path& file) {
  return file.filename() == "job.textproto" || file.filename() == "learns.cmake";
}

void write_from(const fs::path& folder, const fs::path& output, const Words& words, bool with_job = true) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!with_job && is_of_a_job(entry.path())) continue;
    std::string text = read_file(entry.path(), ErrorKind::resource);
    for (const auto& [word, value] : words) text = replaced(std::move(text), "@" + word + "@", value);
    const fs::path file = output / replaced(entry.path().filename().string(), "NAME", words.at("NAME"));
    std::ofstream to(file, std::ios::binary);
    to << text;
    to.close();
    if (!to) fail(ErrorKind::resource, "cannot write {}", file.string());
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder, error) && !(fs::is_directory(folder, error) && fs::is_empty(folder, error))) {
    fail(ErrorKind::usage, "{} exists already and is no empty folder; choose another with --output DIR",
         folder.string());
  }
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::resource, "cannot make the folder {}: {}", folder.string(), error.message());
}

// As a shell reads it back.
std::string shell_word(const std::string& text) {
  const bool plain =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./,:@%") ==
      std::string::npos;
  return plain && !text.empty() ? text : "'" + replaced(text, "'", "'\\''") + "'";
}

bool is_installed() { return fs::exists(runtime_folder().parent_path() / "lib/cmake/ananke/ananke-config.cmake"); }

// Where a plugin's build finds this ananke, as commands name it; a program that runs where it was built is not there
// yet.
std::string prefix_word() { return is_installed() ? shell_word(runtime_folder().parent_path().string()) : "DIR"; }

// Of its template's job; AdamW, where the plugin itself is none.
std::string optimizer_lines(const std::string& own) {
  if (!own.empty()) return fmt::format("optimizer {{ match: \".*\" use: \"{}\" }}", own);
  return "plugins { config { [ananke/ananke.plugin.AdamW] { lr: 1e-2 } } }\n"
         "optimizer { match: \".*\" use: \"adamw\" }";
}

void print_next_steps(const std::string& name, const fs::path& output, const fs::path& guide) {
  const std::string prefix = prefix_word();
  std::printf("%s: a plugin that builds, is tested and does something as it is\n", output.c_str());
  if (!is_installed()) {
    std::printf("  cmake --install %s --prefix DIR    # first: where ananke shall be\n",
                shell_word(runtime_folder().parent_path().string()).c_str());
  }
  std::printf("  cd %s\n  cmake -S . -B build -DCMAKE_PREFIX_PATH=%s\n  cmake --build build\n",
              shell_word(output.string()).c_str(), prefix.c_str());
  std::printf("  ctest --test-dir build --output-on-failure\n");
  std::printf("  ANANKE_PLUGIN_PATH=build/lib/ananke %s/bin/ananke plugins info %s\n", prefix.c_str(), name.c_str());
  std::printf("the guide: %s\n", guide.c_str());
}

}  // namespace

int command_plugins_new(const Arguments& arguments) {
  std::string name, role_name, folder;
  CommandOptions options(
      "plugins new", "NAME --role ROLE [--output DIR]",
      "Writes a plugin of your own, outside this tree: sources, test, job and CMake, ready to build.\n"
      "NAME is lower-case letters, digits and _.");
  options.word("NAME", name);
  const std::string offered = offered_roles("|");
  options.add()("role", po::value(&role_name)->value_name(offered), "what it is")(
      "output", po::value(&folder)->value_name("DIR"), "folder to write; default: ./NAME");
  if (!options.read(arguments)) return 0;
  if (role_name.empty()) options.misused(fmt::format("say what {} is: --role ROLE", name));
  const Role& role = role_of(role_name);
  check_name(name);
  const fs::path templates = templates_folder();
  const fs::path output = folder.empty()     ? fs::path(name)
                          : folder[0] == '-' ? fs::path("./" + folder)
                                             : fs::path(folder);
  make_folder(output);
  const Words replacements = {{"NAME", name},
                              {"CLASS", class_name(name)},
                              {"ROLE", role.name},
                              {"PREFIX", prefix_word()},
                              {"DESCRIPTION", role.description},
                              {"OPTIMIZER", optimizer_lines(role_name == "optimizer" ? name : "")},
                              {"MESH", role.mesh}};
  write_from(templates / "common", output, replacements, role.in_jobs);
  write_from(templates / role.name, output, replacements);
  print_next_steps(name, output, templates.parent_path() / "README.md");
  return 0;
}

}  // namespace ananke
