#include "launcher/command.h"

namespace ananke {

// Each is defined in the file of its name.
int command_parity(const std::vector<std::string>& arguments);

std::span<const Command> all_commands() {
  static constexpr Command commands[] = {
      {"parity", "compare a Hugging Face model's logits, loss and gradients with a recorded case", command_parity},
  };
  return commands;
}

}  // namespace ananke
