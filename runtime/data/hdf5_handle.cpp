#include "runtime/data/hdf5_handle.h"

#include <hdf5.h>

#include "runtime/base/hdf5_lock.h"

namespace ananke {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

Hdf5Session::Hdf5Session() : lock_(hdf5_mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string hdf5_reason() {
  std::string reason = "no reason given by libhdf5";
  // Upward: the innermost call comes first, and says most.
  const auto take_first = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 1;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
  return reason;
}

}  // namespace ananke
