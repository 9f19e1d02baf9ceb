#include "launcher/slurm/batch_script.h"

#include <algorithm>
#include <sstream>

#include "ananke/site.pb.h"
#include "launcher/slurm/command.h"
#include "runtime/base/error.h"
#include "runtime/config/site.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr const char* template_name = "train.sbatch";

// A job's name in Slurm and its file names: no blanks, nothing that a pattern of --output takes for its own.
std::string plain_name(std::string name) {
  for (char& c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!plain) c = '-';
  }
  return name;
}

std::string lines_of(const auto& texts, const char* begin) {
  std::string lines;
  for (const std::string& text : texts) lines += (lines.empty() ? "" : "\n") + (begin + text);
  return lines;
}

}  // namespace

fs::path find_template(const std::string& site) {
  std::vector<fs::path> candidates;
  const bool is_file = is_site_file(site);
  if (is_file) candidates.push_back(fs::path(site).parent_path() / template_name);
  for (const fs::path& folder : site_search_path()) {
    if (!is_file) candidates.push_back(folder / site / template_name);
  }
  for (const fs::path& folder : site_search_path()) candidates.push_back(folder / template_name);
  for (const fs::path& file : candidates) {
    std::error_code none;
    if (fs::exists(file, none)) return file;
  }
  std::string looked;
  for (const fs::path& file : candidates) looked += (looked.empty() ? "" : ", ") + file.string();
  fail(ErrorKind::config,
       "there is no {} for site '{}': looked for {}; put one beside the site's file, or let ANANKE_SITE_PATH name "
       "the folder of sites that has it",
       template_name, site, looked);
}

std::string fill_template(const std::string& text, const std::map<std::string, std::string>& words,
                          const std::string& file) {
  std::string filled;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    bool replaced = false;
    for (std::size_t open = 0; (open = line.find("{{", open)) != std::string::npos;) {
      const std::size_t close = line.find("}}", open);
      if (close == std::string::npos) {
        fail(ErrorKind::config, "{}:{}: '{{{{' without '}}}}' on the same line; close it, as in '{{{{nodes}}}}'", file,
             number);
      }
      const auto word = words.find(line.substr(open + 2, close - open - 2));
      if (word == words.end()) {
        std::string known;
        for (const auto& [name, value] : words) known += (known.empty() ? "" : ", ") + name;
        fail(ErrorKind::config, "{}:{}: there is no '{}'; take one of these, or remove it: {}", file, number,
             line.substr(open, close + 2 - open), known);
      }
      line.replace(open, close + 2 - open, word->second);
      open += word->second.size();
      replaced = true;
    }
    if (!replaced || !line.empty()) filled += line + "\n";
  }
  return filled;
}

std::string slurm_time(std::chrono::seconds time) {
  const long all = time.count();
  const std::string clock = fmt::format("{:02}:{:02}:{:02}", all / 3600 % 24, all / 60 % 60, all % 60);
  return all < 86400 ? clock : fmt::format("{}-{}", all / 86400, clock);
}

std::map<std::string, std::string> batch_words(const BatchRequest& request, const Site& site,
                                               const SlurmVersion& version) {
  const Batch& batch = site.slurm().batch();
  std::map<std::string, std::string> words;
  words["job_name"] = plain_name(request.job_name);
  words["nodes"] = std::to_string(request.nodes + request.spares);
  words["ranks_per_node"] = std::to_string(request.ranks_per_node);
  words["time_limit"] = slurm_time(request.time_limit);
  words["lead_seconds"] = std::to_string(request.lead_time.count());
  // %j is Slurm's. Any other % of the path would be taken for a pattern too.
  std::string folder = request.run_dir.string();
  for (std::size_t at = 0; (at = folder.find('%', at)) != std::string::npos; at += 2) folder.insert(at, 1, '%');
  words["output"] = folder + "/logs/slurm-%j.out";
  words["options"] = lines_of(batch.option(), "#SBATCH ");
  words["command"] = quote_words(request.command);
  words["requeue"] = request.requeue ? "requeue" : "no-requeue";
  words["dependency"] = request.after.empty() ? "" : "#SBATCH --dependency=afterany:" + request.after;
  words["gpus"] = "";
  std::vector<std::string> shell(batch.shell().begin(), batch.shell().end());
  if (batch.gpus_per_node() > 0) {
    // Both forms together are refused since 26.05; before 19.05 there was only the first.
    const bool newer = !version.known() || version.at_least(19, 5);
    words["gpus"] = fmt::format("#SBATCH --{}{}", newer ? "gpus-per-node=" : "gres=gpu:", batch.gpus_per_node());
  }
  // From 22.05 until it was taken back in 23.11, srun did not inherit this. An empty one it refuses.
  if (version.known() && version.at_least(22, 5) && !version.at_least(23, 11)) {
    shell.insert(shell.begin(), "[ -z \"$SLURM_CPUS_PER_TASK\" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK");
  }
  words["shell"] = lines_of(shell, "");
  return words;
}

}  // namespace ananke
