// `ananke completion bash` and `ananke man`: the command line as other programs want to know it.
#include <cstdio>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/completion_text.h"
#include "launcher/man_text.h"
#include "runtime/base/error.h"

namespace ananke {

int command_completion(const Arguments& arguments) {
  std::string shell;
  CommandOptions options("completion", "SHELL",
                         "Prints the completion of commands, options, plugin names and files. SHELL is bash. An\n"
                         "installation has it in share/bash-completion/completions; for this shell only:\n"
                         "source <(ananke completion bash)");
  options.word("SHELL", shell);
  if (!options.read(arguments)) return 0;
  if (shell != "bash") options.misused(fmt::format("there is no completion for '{}', only for bash", shell));
  std::fputs(bash_completion(describe_commands()).c_str(), stdout);
  return 0;
}

int command_man(const Arguments& arguments) {
  CommandOptions options("man", "", "Prints the man page as roff: ananke man | man -l -");
  if (!options.read(arguments)) return 0;
  std::fputs(man_page(describe_commands()).c_str(), stdout);
  return 0;
}

}  // namespace ananke
