// The only client of libpmix: asks who we are, then lets go of the library.
#include <dlfcn.h>
#include <pmix.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/bootstrap/identity.h"

namespace ananke::detail {
namespace {

std::string library_name() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(&PMIx_Init), &info) != 0 && info.dli_fname != nullptr;
  return fmt::format("{} ({})", PMIx_Get_version(), found ? info.dli_fname : "file unknown");
}

// "OpenPMIx 4.2.2rc2, ..." -> "4.2.2rc2"
std::string short_version() {
  const std::string version = PMIx_Get_version();
  const auto digit = version.find_first_of("0123456789");
  return digit == std::string::npos ? version : version.substr(digit, version.find_first_of(", ", digit) - digit);
}

// Servers differ in the types they give.
std::optional<int> as_number(const pmix_value_t& value) {
  switch (value.type) {
    case PMIX_INT: return value.data.integer;
    case PMIX_INT8: return value.data.int8;
    case PMIX_INT16: return value.data.int16;
    case PMIX_INT32: return value.data.int32;
    case PMIX_INT64: return static_cast<int>(value.data.int64);
    case PMIX_UINT: return static_cast<int>(value.data.uint);
    case PMIX_UINT8: return value.data.uint8;
    case PMIX_UINT16: return value.data.uint16;
    case PMIX_UINT32: return static_cast<int>(value.data.uint32);
    case PMIX_UINT64: return static_cast<int>(value.data.uint64);
    case PMIX_SIZE: return static_cast<int>(value.data.size);
    case PMIX_PROC_RANK: return static_cast<int>(value.data.rank);
    default: return std::nullopt;
  }
}

class Client {
 public:
  explicit Client(std::chrono::milliseconds deadline)
      : seconds_(std::max(1, static_cast<int>(std::chrono::ceil<std::chrono::seconds>(deadline).count()))) {
    check(PMIx_Init(&me_, nullptr, 0), "PMIx_Init");
    PMIX_LOAD_PROCID(&job_, me_.nspace, PMIX_RANK_WILDCARD);
  }

  Identity ask() {
    Identity identity;
    identity.source = "PMIx " + short_version();
    identity.rank = static_cast<int>(me_.rank);
    identity.job_id = me_.nspace;
    identity.size = number(job_, PMIX_JOB_SIZE);
    identity.local_size = number(job_, PMIX_LOCAL_SIZE);
    identity.local_rank = number(me_, PMIX_LOCAL_RANK);
    identity.node_index = number(me_, PMIX_NODEID);
    identity.host = text(me_, PMIX_HOSTNAME);
    return identity;
  }
  void finalize() { check(PMIx_Finalize(nullptr, 0), "PMIx_Finalize"); }

 private:
  static void check(pmix_status_t status, const char* what) {
    if (status == PMIX_SUCCESS) return;
    fail(ErrorKind::resource, "{}: {}; library {}", what, PMIx_Error_string(status), library_name());
  }
  // A value that nobody gave would be waited for without end.
  pmix_value_t* get(const pmix_proc_t& process, const char* key) const {
    pmix_info_t limit;
    PMIX_INFO_CONSTRUCT(&limit);
    PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds_, PMIX_INT);
    pmix_value_t* value = nullptr;
    const pmix_status_t status = PMIx_Get(&process, key, &limit, 1, &value);
    PMIX_INFO_DESTRUCT(&limit);
    if (status != PMIX_SUCCESS || value == nullptr) {
      fail(ErrorKind::resource, "the PMIx server does not tell {}: {}; library {}", key, PMIx_Error_string(status),
           library_name());
    }
    return value;
  }
  int number(const pmix_proc_t& process, const char* key) const {
    pmix_value_t* value = get(process, key);
    const auto found = as_number(*value);
    const int type = value->type;
    PMIX_VALUE_RELEASE(value);
    if (!found) fail(ErrorKind::resource, "the PMIx server gives {} as type {}, which is no integer", key, type);
    return *found;
  }
  std::string text(const pmix_proc_t& process, const char* key) const {
    pmix_value_t* value = get(process, key);
    std::string found = value->type == PMIX_STRING && value->data.string != nullptr ? value->data.string : "";
    PMIX_VALUE_RELEASE(value);
    return found;
  }

  int seconds_;
  pmix_proc_t me_{}, job_{};
};

}  // namespace

Identity identify_by_pmix(std::chrono::milliseconds deadline) {
  // The library has no deadline of its own everywhere, so it runs on a thread that can be left behind.
  std::promise<Identity> promise;
  std::future<Identity> result = promise.get_future();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the caller's thread, not for the library's
  std::thread worker([deadline, promise = std::move(promise)]() mutable {
    try {
      Client client(deadline);
      Identity identity = client.ask();
      client.finalize();
      promise.set_value(std::move(identity));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (result.wait_for(deadline) != std::future_status::ready) {
    worker.detach();
    fail(ErrorKind::stalled,
         "the PMIx library {} did not answer within {}; it may not fit this machine's PMIx server: "
         "try `srun --mpi=none`, or another libpmix",
         library_name(), format_duration(std::chrono::duration<double>(deadline).count()));
  }
  worker.join();
  Identity identity = result.get();
  check_identity(identity);
  return identity;
}

}  // namespace ananke::detail
