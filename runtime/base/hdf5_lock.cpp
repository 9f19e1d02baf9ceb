#include "runtime/base/hdf5_lock.h"

namespace ananke {

std::mutex& hdf5_mutex() noexcept {
  static std::mutex mutex;  // one for the process, since the library has one state for the process
  return mutex;
}

}  // namespace ananke
