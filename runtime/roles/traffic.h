// Bytes that a role has received from other ranks, or moved between host and device, for the step record: counted where
// they are asked for, by host arithmetic, so they are the same in every run.
//
// What the built-in plugins and the runtime count of one step. N: ranks of the axis; M: microbatches; r, f: elements of
// the rank's range in the unit's wire and fp32 segment (comm/placement.h). Of every unit or layer; a step record has
// the sum over those of one kind. dense: embedding and head, too.
//
//   resource  axis                  unit            direction          bytes
//   network   shard, expert_shard   dense, experts  gather             G (N - 1) (w(r) + 4 f)
//   nvlink    node                  dense           gather             G' (n - 1) s
//   network   shard, expert_shard   dense, experts  reduce             D (N - 1) (v r + 4 f)
//   network   replicate             every           reduce             2 (N - 1) / N x 4 (r + f)
//   nvlink    expert                experts         counts             F M (N - 1) x 4 chunks
//   nvlink    expert                experts         dispatch           F x in x row(2)
//   nvlink    expert                experts         combine            out x row(0)
//   nvlink    expert                experts         combine_backward   in x row(0)
//   nvlink    expert                experts         dispatch_backward  out x row(1)
//   network   shard                 none            redistribute       4 (lacking + returned)
//   network   replicate             none            redistribute       4 shared
//   h2d       host                  of there        weights            4 G (r + f)
//   d2h       host                  of there        gradients          4 D (r + f)
//   h2d       host                  of there        gradients          4 (D - 1) (r + f)
//   h2d       host                  none            update             4 (2 + states) elements
//   d2h       host                  none            update             4 (1 + states) elements
//
//   h2d     "host_to_device"; d2h "device_to_host"; of there: dense or experts whose state is in host memory, and of
//           whose elements the rank's own are counted; states: of the optimizer
//   w(r)    4 r as FP32; 2 r as BF16; as FP8_E4M3 r and one byte for each scale, a multiple of 16, of the rank with the
//           most: scales of 128 x 128 blocks, one for every block of the block rows that a range has a part of
//   v       4 for FP32_REDUCE_SCATTER, 2 for BF16_ALL_TO_ALL
//   G, G'   gathers: uses in the schedule that do not find the unit where it was gathered before. Without
//           reshard_after_forward 1; else at most one forward and one backward for every microbatches_per_gather
//           microbatches (0: for all). With node_copy the first of a step is a G, the others are G'
//   n, s    ranks of the node, and a node rank's slice of what the unit's gather brings, a multiple of 16
//   D       reductions: one for every microbatches_per_gather microbatches
//   F       2 where recompute makes the dispatch again, else 1
//   counts  none where the device alone knows them (plugin ep, counts): then the lines of all layers stand under the
//           first
//   in      copies of other ranks' tokens that arrive: a token has one copy for every rank of the axis but its own that
//           holds one or more of its k experts: at most min(k, N - 1)
//   out     likewise of its own tokens, of which results come back
//   lacking, returned, shared   elements of whole matrices (engine/matrix_work.h): of those that the rank transforms,
//           what others store; of those that others transform, what it stores; with share_replicas, what it stores of
//           those that other replicas transform (and up to 63 between resident matrices of two shapes)
//   row(e)  H values of 4 bytes (BF16: 2), and e times k values of 4, each of the parts a multiple of 16
//
// Not in it, being some numbers a step: sums of losses, norms and the routers' load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/stream.h"

namespace ananke {

enum class Direction {
  gather,
  reduce,
  counts,  // how many tokens will travel
  dispatch,
  combine,
  dispatch_backward,
  combine_backward,
  redistribute,
  weights,    // between host and device from here on: to be gathered
  gradients,  // summed so far
  update      // weights, gradients and states for the optimizers, and back
};
const char* name_of(Direction direction) noexcept;

struct TrafficLine {
  Resource resource = Resource::network;  // whose stream carries it
  std::string axis;                       // of the mesh: "shard", "replicate", "expert_shard", "expert", "node"; "host"
  int unit = -1;                          // index into ParameterTable::units(); -1: no unit in particular
  Direction direction = Direction::gather;
  std::uint64_t bytes = 0;  // received or moved by this rank since start
};

// One line per (resource, axis, unit, direction). A role that is asked again gives the same lines with grown bytes.
using Traffic = std::vector<TrafficLine>;

std::uint64_t bytes_of(const Traffic& traffic, Direction direction) noexcept;

}  // namespace ananke
