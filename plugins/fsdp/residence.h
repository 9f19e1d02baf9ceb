// Which units' masters, gradients and optimizer states lie in host memory: a pure function of config and model.
#pragma once

#include <string>
#include <vector>

#include "plugins/fsdp/fsdp.pb.h"
#include "runtime/model/parameter_table.h"

namespace ananke::fsdp {

struct Residence {
  std::vector<bool> on_host;  // by unit
  std::vector<int> layers;    // that are there, ascending
  int all_layers = 0;
  bool any() const { return !layers.empty(); }
};

// host_fraction 1: every unit; else those of so many layers, evenly spread: what is read from the host for one layer
// travels while the next ones are computed with.
Residence residence_of(const ParameterTable& table, const plugin::Fsdp& config);
// "state of 3 of 8 layers (1, 4, 7) is in host memory: 12 GiB of weights and gradients".
std::string describe(const Residence& residence, std::uint64_t bytes);

}  // namespace ananke::fsdp
