// What a command says: standard output as its product, errors in a line, exit codes.
#pragma once

#include <functional>

namespace ananke {

// Its result; where it throws, what that says goes to standard error and its kind is the exit code.
int tell_errors(const std::function<int()>& work);

// Throws Error(resource) where not all that was printed could be written: a full disk, a closed descriptor. A reader
// who has left (a closed pipe) has heard enough.
void check_output();

}  // namespace ananke
