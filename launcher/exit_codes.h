// What an exit code of `ananke` means, for people.
#pragma once

#include <span>

#include "runtime/base/error.h"

namespace ananke {

struct ExitCode {
  ErrorKind kind;
  const char* meaning;
};

// Ascending; 0 is "done".
std::span<const ExitCode> exit_codes();

}  // namespace ananke
