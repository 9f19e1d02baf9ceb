#include "runtime/base/hdf5_lock.h"

#include <hdf5.h>

namespace ananke {

std::mutex& hdf5_mutex() noexcept {
  static std::mutex mutex;  // one for the process, since the library has one state for the process
  // Where the system refuses to close a file (a quota on NFS), the library frees it and yet keeps it in its list, which
  // it goes through at the end of the process. All files are closed by then.
  [[maybe_unused]] static const herr_t no_cleanup = H5dont_atexit();
  return mutex;
}

}  // namespace ananke
