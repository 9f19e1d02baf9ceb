#include "launcher/command.h"

namespace ananke {

std::span<const Command> all_commands() {
  static constexpr std::span<const Command> commands;
  return commands;
}

}  // namespace ananke
