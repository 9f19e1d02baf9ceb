// Reading a site profile: site/<name>/site.textproto.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ananke/site.pb.h"

namespace ananke {

// ANANKE_SITE_PATH (folders separated by ':'), then "site" in the source tree that libananke was built in, then
// share/ananke/site of an installed one; those that exist.
std::vector<std::filesystem::path> site_search_path();

// Is it the path of a file (with a '/' or ending in .textproto), and not a site's name?
bool is_site_file(const std::string& name);
// As any process on any node can be told it: a path is made absolute.
std::string site_from_anywhere(const std::string& name);

// `name` is a site's name ("local"), or a path to a file (with a '/' or ending in .textproto). Defaults are written
// out. Throws Error(config): unknown name with the nearest, or what is wrong with the file with line and column.
Site load_site(const std::string& name);

// Ranks that a node of the site takes, of a job of so many: slurm.ranks_per_node, else one for each of hardware.gpus; 0
// where the site says neither.
int ranks_wanted_on_node(const Site& site, int ranks);

}  // namespace ananke
