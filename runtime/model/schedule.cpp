#include "runtime/model/schedule.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ananke {
namespace {

bool has_gradient(Phase phase) { return phase != Phase::forward; }

Item make_item(const ParameterTable& table, int block, Phase phase, int microbatch) {
  Item item{block, phase, microbatch, {}};
  const Block& what = table.blocks()[static_cast<std::size_t>(block)];
  for (int unit : what.units) {
    const bool only_indices = what.kind == BlockKind::embedding && phase == Phase::backward;
    item.units.push_back({unit, false, false, false, false, !only_indices});
  }
  if (phase == Phase::backward) std::reverse(item.units.begin(), item.units.end());
  return item;
}

// First and last uses, by one look over the finished list.
void mark_uses(Schedule& schedule, std::size_t units) {
  std::vector<UnitUse*> last_use(units, nullptr), last_gradient(units, nullptr);
  for (Item& item : schedule) {
    for (UnitUse& use : item.units) {
      const auto unit = static_cast<std::size_t>(use.unit);
      if (use.needs_weights) {
        use.first_use = !last_use[unit];
        last_use[unit] = &use;
      }
      if (has_gradient(item.phase)) {
        use.first_gradient = !last_gradient[unit];
        last_gradient[unit] = &use;
      }
    }
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    if (last_use[unit]) last_use[unit]->last_use = true;
    if (last_gradient[unit]) last_gradient[unit]->last_gradient = true;
  }
}

const char* name_of(Phase phase) {
  return phase == Phase::forward ? "forward" : phase == Phase::backward ? "backward" : "both";
}

}  // namespace

// As units are called.
std::string name_of(const Item& item, const Block& block) {
  const std::string name = block.kind == BlockKind::layer       ? fmt::format("layer.{}", block.layer)
                           : block.kind == BlockKind::embedding ? "embedding"
                                                                : "head";
  return fmt::format("{} {}", name, item.phase == Phase::both ? "forward and backward" : name_of(item.phase));
}

std::string to_string(const ItemPlace& place) {
  if (place.number == 0) return {};
  return fmt::format("item {} of {}, {}, microbatch {}", place.number, place.of, place.name, place.microbatch);
}

Schedule training_schedule(const ParameterTable& table, int microbatches, int per_gather) {
  ANANKE_CHECK(microbatches >= 1, "{} microbatches", microbatches);
  ANANKE_CHECK(per_gather >= 1 && microbatches % per_gather == 0, "{} microbatches in groups of {}", microbatches,
               per_gather);
  const int head = static_cast<int>(table.blocks().size()) - 1;
  Schedule schedule;
  for (int first = 0; first < microbatches; first += per_gather) {
    const auto add_group = [&](int block, Phase phase) {
      for (int m = first; m < first + per_gather; ++m) schedule.push_back(make_item(table, block, phase, m));
    };
    for (int block = 0; block < head; ++block) add_group(block, Phase::forward);
    add_group(head, Phase::both);
    for (int block = head - 1; block >= 0; --block) add_group(block, Phase::backward);
  }
  mark_uses(schedule, table.units().size());
  return schedule;
}

Schedule evaluation_schedule(const ParameterTable& table) {
  Schedule schedule;
  for (int block = 0; block < static_cast<int>(table.blocks().size()); ++block) {
    schedule.push_back(make_item(table, block, Phase::forward, 0));
  }
  mark_uses(schedule, table.units().size());
  return schedule;
}

std::string to_string(const Schedule& schedule, const ParameterTable& table) {
  std::string text;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const Item& item = schedule[i];
    text += fmt::format("{:4} {:8} block {:3} microbatch {}:", i, name_of(item.phase), item.block, item.microbatch);
    for (const UnitUse& use : item.units) {
      text += fmt::format(" {}{}{}{}{}{}", table.units()[static_cast<std::size_t>(use.unit)].name,
                          use.needs_weights ? "" : " (no weights)", use.first_use ? " first" : "",
                          use.last_use ? " last" : "", use.first_gradient ? " first-gradient" : "",
                          use.last_gradient ? " last-gradient" : "");
    }
    text += '\n';
  }
  return text;
}

}  // namespace ananke
