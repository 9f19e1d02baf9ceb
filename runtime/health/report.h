// The verdict over all nodes, out of what each said. Pure, but for the history's files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ananke/health.pb.h"
#include "ananke/site.pb.h"

namespace ananke {

struct NodeAnswer {
  std::string node;
  std::optional<NodeHealth> health = {};
  std::string why_not = {};  // where there is none
};

// By the clock of whoever asked, seconds since 1970; both 0: the node asked itself.
struct AskedAt {
  double begin = 0, end = 0;
};

double since_1970();  // this node's clock, as AskedAt and NodeHealth have it

// Compares the nodes with each other, with their history and with the clock, and gives every node and the whole its
// verdict. A node that did not answer is UNKNOWN; where none did there is no verdict (exit code 2).
HealthReport make_report(const std::vector<NodeAnswer>& answers, const Site& site, HealthLevel level,
                         const std::string& job, const AskedAt& asked);

// Adds the report's nodes to the history of the site. What cannot be written is a note.
void keep_history(HealthReport* report, const Site& site);

bool is_bad(HealthVerdict verdict);  // FAIL or UNKNOWN: a job is better off without the node

// One line a node, or one a check where there is one node; the verdict; what to exclude and to drain. `drains`: whoever
// prints it drains the nodes now.
std::string report_text(const HealthReport& report, bool drains = false);
std::string report_json(const HealthReport& report);  // one line
// Of the text format that Prometheus' node exporter reads from a file.
std::string report_prometheus(const HealthReport& report);

// "FAIL gpu.count: 3 GPUs, ...": what is worst of a node; of one that is fine how many checks were made.
std::string node_summary(const NodeHealth& node);

}  // namespace ananke
