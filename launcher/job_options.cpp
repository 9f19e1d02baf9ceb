#include "launcher/job_options.h"

#include <boost/program_options.hpp>
#include <cstdio>
#include <sstream>

#include "ananke/site.pb.h"
#include "launcher/arguments.h"
#include "runtime/base/error.h"
#include "runtime/comm/placement.h"
#include "runtime/config/validate.h"
#include "runtime/data/document_source.h"
#include "runtime/engine/optimizer_rules.h"

namespace ananke {

namespace po = boost::program_options;

void JobArguments::add_to(CommandOptions& options) {
  options.word("JOB", file_);
  options.add()                                                                                                     //
      ("ranks", po::value(&ranks_)->value_name("N"), "number of workers; default: as many as the job's mesh says")  //
      ("site", po::value(&site)->value_name("SITE"), "site profile, by name or file; default: local")               //
      ("set", po::value(&job.overrides)->composing()->value_name("PATH=VALUE"),
       "change a field of the job, for example model.hidden_size=128 or plugins.adamw.lr=1e-3; may be repeated")  //
      ("run-dir", po::value(&run_dir_)->value_name("DIR"), "the run folder: short for --set run_dir=DIR")         //
      ("print-config", po::bool_switch(&print_config), "print the resolved job and leave")                        //
      ("print-placement", po::bool_switch(&print_placement),
       "print which rank owns which part of every unit of parameters and leave");
}

void JobArguments::complete(const CommandOptions& options) {
  constexpr long long most = 1 << 20;
  if (options.given("ranks") && (ranks_ < 1 || ranks_ > most)) {
    fail(ErrorKind::usage, "--ranks {} is no number of workers; give 1 to {}", ranks_, most);
  }
  job.file = file_;
  job.ranks = static_cast<std::uint32_t>(ranks_);
  if (options.given("run-dir")) job.overrides.push_back("run_dir=" + run_dir_);
}

LoadedJob load_checked_job(const JobArguments& arguments) {
  LoadedJob loaded = load_job(arguments.job);
  try {
    optimizer_of_each(loaded.job, ParameterTable(loaded.job.model()));
    training_documents(loaded.job);
    for (const HeldOut& set : loaded.job.evaluation().held_out()) held_out_documents(loaded.job, set);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", arguments.job.file.string(), error.what());
  }
  return loaded;
}

bool print_instead(const JobArguments& arguments, const LoadedJob& loaded) {
  if (arguments.print_config) std::fputs(print_job(loaded).c_str(), stdout);
  if (arguments.print_placement) {
    const ParameterTable table(loaded.job.model());
    std::fputs(Placement(table, mesh_of(loaded.job.mesh())).table().c_str(), stdout);
  }
  return arguments.print_config || arguments.print_placement;
}

void print_valid(const JobArguments& arguments, const LoadedJob& loaded, const Site& site) {
  const Job& job = loaded.job;
  std::printf("%s: job '%s' is valid for %u ranks (%s) at site %s\n", arguments.job.file.c_str(), job.name().c_str(),
              job.resolved().ranks(), to_string(mesh_of(job.mesh())).c_str(), site.name().c_str());
  for (const std::string& remark : remarks_on(job)) std::printf("note: %s\n", remark.c_str());
  for (const PluginFile& plugin : job.resolved().plugins()) {
    std::printf("  %-12s %-20s %s\n", plugin.role().c_str(), plugin.name().c_str(), plugin.path().c_str());
  }
}

}  // namespace ananke
