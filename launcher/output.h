// Standard output as the product of a command.
#pragma once

namespace ananke {

// Throws Error(resource) where not all that was printed could be written: a full disk, a closed descriptor. A reader
// who has left (a closed pipe) has heard enough.
void check_output();

}  // namespace ananke
