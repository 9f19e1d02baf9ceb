// Whole training jobs of six layers in which little but time passes: operators sleep on the compute stream, collectives
// of the host backend on theirs (communication_delay), and a tiny model is really trained. How long a step takes is
// then the order of the work. Ranks are threads.
#pragma once

#include <functional>
#include <string>

#include "runtime/comm/mesh.h"
#include "tests/bench/timed_backend.h"

namespace ananke::testing {

struct OverlapCase {
  std::string name;
  MeshShape mesh{1, 2, 1};
  int experts = 0;    // of every layer; 0: dense layers
  int chunks = 0;     // > 0: tokens are exchanged by plugin ep in so many
  bool muon = false;  // for the matrices between embedding and head
  // Text format: more fields of the model, of training, of plugin fsdp, and of the job.
  std::string model = {}, training = {}, fsdp = {}, changes = {};
  int hidden = 32, tokens = 32;  // of the model, and of a rank in a step

  // Milliseconds. Of a layer's forward, half in its attention and half in its MLP (its backward takes twice as long),
  // of the head both ways, and below of one Newton-Schulz call. 0: what it really takes.
  int layer = 20, head = 20;
  int network = 0;  // of every collective on that stream
  int nvlink = 0;   // of a layer's exchange in one direction, all chunks together
  int newton_schulz = 0;
  int slow_rank = -1;  // computes slow_factor times as long
  double slow_factor = 1;
  int steps = 6;
  ClockKind clock = ClockKind::sleeping;
};

struct OverlapReport {             // seconds
  double step = 0;                 // the shortest after the first
  double compute = 0;              // the same with collectives that do not sleep
  double network = 0, nvlink = 0;  // the delays of a step's collectives, summed by the stream they run on
  // Delays that nothing can run under: what arrives before the first layer can compute (embedding and its dense unit),
  // and what is left to send when the last one has.
  double first_gather = 0, last_reduce = 0;
  // Within each layer, before its first chunk arrives and after its last one is computed, forward and backward.
  double exchange_edges = 0;

  double communication() const { return network > nvlink ? network : nvlink; }
  double bound() const { return (compute > communication() ? compute : communication()) + first_gather + last_reduce; }
  double ratio() const { return step / bound(); }
};

// Two runs, without and with the communicators' delay.
OverlapReport measure_overlap(const OverlapCase& what);

// The job once, for what goes wrong in it: collective number `failing` (from 0) on the network stream of `rank` throws
// Error(internal) with `text` there. Throws what ends the job.
void run_until_failure(const OverlapCase& what, int rank, int failing, const std::string& text);

}  // namespace ananke::testing
