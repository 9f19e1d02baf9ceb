// libhdf5 keeps global state and is not built thread-safe everywhere: whoever calls it, in any folder, holds this
// mutex meanwhile. Ranks may be threads of one process.
#pragma once

#include <mutex>

namespace ananke {

std::mutex& hdf5_mutex() noexcept;

}  // namespace ananke
