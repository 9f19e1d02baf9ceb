#include "plugins/fsdp/residence.h"

#include <fmt/ranges.h>

#include <cmath>

#include "runtime/base/units.h"

namespace ananke::fsdp {

Residence residence_of(const ParameterTable& table, const plugin::Fsdp& config) {
  Residence residence;
  residence.on_host.assign(table.units().size(), false);
  for (const Block& block : table.blocks()) residence.all_layers += block.kind == BlockKind::layer ? 1 : 0;
  if (config.residence() != plugin::Fsdp::HOST) return residence;
  const std::int64_t layers = residence.all_layers;
  const std::int64_t count = std::llround(config.host_fraction() * static_cast<double>(layers));
  for (const Block& block : table.blocks()) {
    const bool layer = block.kind == BlockKind::layer;
    const bool moved =
        layer ? (block.layer + 1) * count / layers > block.layer * count / layers : config.host_fraction() == 1;
    if (!moved) continue;
    if (layer) residence.layers.push_back(block.layer);
    for (const int unit : block.units) residence.on_host[static_cast<std::size_t>(unit)] = true;
  }
  return residence;
}

std::string describe(const Residence& residence, std::uint64_t bytes) {
  if (std::ssize(residence.layers) == residence.all_layers) {
    return fmt::format("all state is in host memory: {} of weights and gradients, and the optimizer's beside them",
                       format_bytes(bytes));
  }
  return fmt::format(
      "state of {} of {} layers ({}) is in host memory: {} of weights and gradients, and the optimizer's "
      "beside them",
      residence.layers.size(), residence.all_layers, fmt::join(residence.layers, ", "), format_bytes(bytes));
}

}  // namespace ananke::fsdp
