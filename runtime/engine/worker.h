// A worker's life from its identity to its exit code: loads the job's plugins, trains, reports.
#pragma once

#include "runtime/bootstrap/identity.h"
#include "runtime/control/control_client.h"
#include "runtime/engine/item_trail.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {

class Site;
struct LoadedJob;

struct WorkerContext {
  const LoadedJob& job;  // as load_resolved_job() read it from the run folder
  const Site& site;
  Identity identity;
  ControlClient& control;
  std::shared_ptr<CallTrail> trail;  // told which plugin is running
  bool resume = false;
  std::shared_ptr<ItemTrail> items = {};  // told of every item that begins; null: nobody asks
  std::string owner = {};  // token of the run folder's lock; empty: it has none, and nothing is asked of it
};

// Returns the worker's exit code: 0, or that of ErrorKind::interrupted after a stop on request. Throws Error.
int run_worker(const WorkerContext& context);

}  // namespace ananke
