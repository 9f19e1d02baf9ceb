// A worker's life from its identity to its exit code: loads the job's plugins, trains, reports.
#pragma once

#include "runtime/bootstrap/identity.h"
#include "runtime/control/control_client.h"

namespace ananke {

class Job;
class Site;

struct WorkerContext {
  const Job& job;  // resolved
  const Site& site;
  Identity identity;
  ControlClient& control;
  bool resume = false;
};

// Returns the worker's exit code: 0, or that of ErrorKind::interrupted after a stop on request. Throws Error.
int run_worker(const WorkerContext& context);

}  // namespace ananke
