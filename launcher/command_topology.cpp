// `ananke topology`: which rank would be on which node, and how far the mesh's axes go there.
#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/lists.h"
#include "launcher/slurm/topology.h"
#include "launcher/topology_text.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/replace_file.h"
#include "runtime/base/units.h"
#include "runtime/config/job.h"
#include "runtime/config/site.h"
#include "runtime/topology/host_names.h"

namespace ananke {
namespace {

namespace po = boost::program_options;
using Names = std::vector<std::string>;

constexpr int most_ranks = 1 << 20;

struct TopologyArguments {
  std::string job, site, hosts, svg;
  JobOptions job_options;
  int nodes = 0, ranks_per_node = 0, replicate = 0, shard = 0, expert = 0;
  std::uint64_t seed = 0;
  bool ranks = false;
};

// `count` of them, by chance that is the same for the same seed.
Names drawn(Names all, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t other = i + hash64(fmt::format("{} {}", seed, i)) % (all.size() - i);
    std::swap(all[i], all[other]);
  }
  all.resize(count);
  return all;
}

// Nodes that the site could give: the first, or some anywhere.
Names imagined_nodes(const TopologyArguments& given, const Site& site, bool anywhere) {
  const auto count = static_cast<std::size_t>(given.nodes);
  if (site.topology().host_names().empty()) {
    Names names;
    for (std::size_t i = 0; i < count; ++i) names.push_back(fmt::format("node{}", i));
    return names;
  }
  Names all = patterns_of(site.topology()).front().all();
  if (all.size() < count) {
    fail(ErrorKind::usage, "--nodes {}: site '{}' has {} nodes", count, site.name(), all.size());
  }
  if (anywhere) return drawn(std::move(all), count, given.seed);
  all.resize(count);
  return all;
}

Names nodes_of(const TopologyArguments& given, const Site& site, const CommandOptions& options) {
  if (options.given("hosts") && options.given("nodes")) options.misused("--hosts and --nodes exclude each other");
  if (options.given("hosts")) return parse_host_list("--hosts", given.hosts);
  if (options.given("nodes")) return imagined_nodes(given, site, options.given("seed"));
  auto allocation = read_allocation([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  if (!allocation) options.misused("no nodes: give --hosts or --nodes, or call it inside of an allocation of Slurm");
  return std::move(allocation->nodes);
}

int ranks_on_node(const TopologyArguments& given, const Site& site) {
  if (given.ranks_per_node > 0) return given.ranks_per_node;
  const int wanted = ranks_wanted_on_node(site, most_ranks);
  return wanted > 0 ? wanted : 1;
}

MeshShape mesh_of_options(const TopologyArguments& given, int ranks) {
  MeshShape mesh;
  mesh.expert = std::max(given.expert, 1);
  mesh.replicate = given.replicate > 0 ? given.replicate : given.shard > 0 ? std::max(ranks / given.shard, 1) : 1;
  mesh.shard = given.shard > 0 ? given.shard : ranks / mesh.replicate;
  if (mesh.shard < 1 || mesh.shard % mesh.expert != 0 || static_cast<long>(mesh.replicate) * mesh.shard > ranks ||
      (given.shard == 0 && ranks % mesh.replicate != 0)) {
    fail(ErrorKind::usage,
         "{} ranks do not make up replicate {} x shard {} with an expert axis of {}: replicate x shard must be the "
         "ranks that are used, and expert must divide shard",
         ranks, mesh.replicate, mesh.shard, mesh.expert);
  }
  return mesh;
}

void check_numbers(const TopologyArguments& given, const CommandOptions& options) {
  const auto check = [&](const char* option, int value) {
    if (options.given(option) && (value < 1 || value > most_ranks)) {
      fail(ErrorKind::usage, "--{} {} is none of 1 to {}", option, value, most_ranks);
    }
  };
  check("nodes", given.nodes);
  check("ranks-per-node", given.ranks_per_node);
  check("replicate", given.replicate);
  check("shard", given.shard);
  check("expert", given.expert);
  if (!given.job.empty() && (given.replicate > 0 || given.shard > 0 || given.expert > 0)) {
    options.misused("a job has its mesh: change that with --set mesh.expert=4, or leave the job out");
  }
}

MeshShape mesh_for(TopologyArguments& given, const Names& nodes, int ranks_per_node) {
  constexpr std::int64_t most_ranks = 1 << 20;
  const std::int64_t all = static_cast<std::int64_t>(nodes.size()) * ranks_per_node;
  if (all > most_ranks) {
    fail(ErrorKind::usage, "topology: {} nodes of {} ranks are {} ranks; at most {} can be laid out", nodes.size(),
         ranks_per_node, all, most_ranks);
  }
  const auto ranks = static_cast<int>(all);
  if (given.job.empty()) return mesh_of_options(given, ranks);
  given.job_options.file = given.job;
  return mesh_of(load_job(given.job_options).job.mesh());
}

void write_drawing(const std::string& file, const std::string& svg) {
  ReplacedFile replaced(file);
  std::ofstream stream(replaced.partial(), std::ios::trunc);
  stream << svg << std::flush;
  if (!stream) fail(ErrorKind::resource, "cannot write {}", file);
  replaced.commit();
  std::printf("drawing: %s\n", file.c_str());
}

void declare(CommandOptions& options, TopologyArguments& given) {
  options.word("JOB", given.job, false);
  options.add()                                                                                                      //
      ("site", po::value(&given.site)->value_name("SITE")->default_value("local"), "site profile, by name or file")  //
      ("hosts", po::value(&given.hosts)->value_name("LIST"), "nodes, such as \"node-[001-002]-[01-48]\"")            //
      ("nodes", po::value(&given.nodes)->value_name("N"), "so many nodes of the site, the first ones")               //
      ("seed", po::value(&given.seed)->value_name("NUMBER"), "with --nodes: nodes anywhere, by chance")              //
      ("ranks-per-node", po::value(&given.ranks_per_node)->value_name("N"), "default: as the site says, else 1")     //
      ("replicate", po::value(&given.replicate)->value_name("N"), "whole copies of the model; default: 1")           //
      ("shard", po::value(&given.shard)->value_name("N"), "ranks of a copy; default: all ranks / replicate")         //
      ("expert", po::value(&given.expert)->value_name("N"), "ranks that exchange tokens; default: 1")                //
      ("set", po::value(&given.job_options.overrides)->composing()->value_name("PATH=VALUE"),
       "change a field of the job, such as mesh.replicate=4; may be repeated")   //
      ("svg", po::value(&given.svg)->value_name("FILE"), "write a drawing too")  //
      ("ranks", po::bool_switch(&given.ranks), "print every node with its ranks instead");
}

}  // namespace

int command_topology(const Arguments& arguments) {
  TopologyArguments given;
  CommandOptions options(
      "topology", "[JOB] [options]",
      "Shows which ranks would be on which nodes, and how many neighbours on each axis of the mesh are\n"
      "in one node, one rack, one group of racks, or in different groups. Nodes are those of the\n"
      "allocation, or any that --hosts or --nodes make up: nothing is started.");
  declare(options, given);
  if (!options.read(arguments)) return 0;
  check_numbers(given, options);
  if (given.job.empty() && options.given("set")) {
    options.misused(
        "--set changes a field of a job, and no JOB is given: give one, or --replicate, --shard and --expert");
  }
  if (options.given("seed") && !options.given("nodes")) options.misused("--seed chooses among --nodes");
  const Site site = load_site(given.site);
  const Names nodes = nodes_of(given, site, options);
  const int ranks_per_node = ranks_on_node(given, site);
  const MeshShape mesh = mesh_for(given, nodes, ranks_per_node);
  const bool asks = !options.given("nodes") && site.start() == Site::SRUN && std::getenv("SLURM_JOB_ID") != nullptr;
  const Places places = asks ? places_of_nodes(nodes, site, parse_duration(site.slurm().command_deadline()))
                             : find_places(nodes, site, {});
  RankMap map = map_ranks(places.nodes, mesh, ranks_per_node);
  map.notices.insert(map.notices.begin(), places.notices.begin(), places.notices.end());
  std::fputs((given.ranks ? rank_list(map) : topology_text(map, site.name(), places.source)).c_str(), stdout);
  if (!given.svg.empty()) write_drawing(given.svg, topology_svg(map, site.name(), places.source));
  return 0;
}

}  // namespace ananke
