#include "launcher/pmix_server.h"

#include <fcntl.h>
#include <pmix.h>
#include <pmix_server.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/descriptor.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"

extern char** environ;

namespace ananke {
namespace {

constexpr std::chrono::seconds longest_finalizing(2);

// While it lives, writing to a socket whose other end is gone raises no signal in this thread, nor ever in one that it
// starts meanwhile. The library writes to clients, which may have been killed while they connected.
class BlockedPipeSignal {
 public:
  BlockedPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BlockedPipeSignal() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedPipeSignal(const BlockedPipeSignal&) = delete;
  BlockedPipeSignal& operator=(const BlockedPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
};

// Callbacks come on the library's thread and know of no object: the one server's state is here.
struct Shared {
  std::mutex mutex;
  std::vector<PmixServer::Abort> aborts;
  Descriptor wake;
  bool used = false;
};

Shared& shared() {
  static Shared one;
  return one;
}

void check(pmix_status_t status, const char* what) {
  if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return;
  fail(ErrorKind::resource, "{}: {}; library {}", what, PMIx_Error_string(status), PMIx_Get_version());
}

// Waits for a call that ends on the library's thread. Every such call is local and short; the limit is for a broken
// library.
class Completion {
 public:
  static void done(pmix_status_t status, void* self) {
    auto* completion = static_cast<Completion*>(self);
    std::lock_guard lock(completion->mutex_);
    completion->status_ = status;
    completion->done_ = true;
    completion->changed_.notify_all();
  }
  void wait(pmix_status_t accepted, const char* what) {
    check(accepted, what);
    if (accepted == PMIX_OPERATION_SUCCEEDED) return;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return done_; })) {
      // The library would still write to this object.
      std::fprintf(stderr, "ananke: %s did not end within 30 s; library %s\n", what, PMIx_Get_version());
      std::_Exit(static_cast<int>(ErrorKind::stalled));
    }
    check(status_, what);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  pmix_status_t status_ = PMIX_SUCCESS;
};

// ---- What the library asks of its host. None may block or call a blocking PMIx function.

pmix_status_t on_connected(const pmix_proc_t*, void*, pmix_info_t*, size_t, pmix_op_cbfunc_t done, void* data) {
  if (done != nullptr) done(PMIX_SUCCESS, data);
  return PMIX_SUCCESS;
}

pmix_status_t on_finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

pmix_status_t on_abort(const pmix_proc_t* who, void*, int status, const char message[], pmix_proc_t[], size_t,
                       pmix_op_cbfunc_t, void*) {
  Shared& state = shared();
  std::lock_guard lock(state.mutex);
  state.aborts.push_back({static_cast<int>(who->rank), status, message == nullptr ? "" : message});
  const char byte = 'a';
  if (state.wake) [[maybe_unused]]
    const ssize_t ignored = write(state.wake.get(), &byte, 1);
  return PMIX_OPERATION_SUCCEEDED;
}

// All clients are on this node, so the library has collected everything itself: hand it back.
pmix_status_t on_fence(const pmix_proc_t[], size_t, const pmix_info_t[], size_t, char* data, size_t size,
                       pmix_modex_cbfunc_t done, void* context) {
  done(
      PMIX_SUCCESS, data, size, context, [](void* bytes) { std::free(bytes); }, data);
  return PMIX_SUCCESS;
}

pmix_status_t on_direct_modex(const pmix_proc_t*, const pmix_info_t[], size_t, pmix_modex_cbfunc_t, void*) {
  return PMIX_ERR_NOT_FOUND;
}

// ---- Job information

class InfoList {
 public:
  InfoList() = default;
  InfoList(const InfoList&) = delete;
  InfoList& operator=(const InfoList&) = delete;
  ~InfoList() {
    for (pmix_info_t& info : items_) PMIX_INFO_DESTRUCT(&info);
  }
  void add(const char* key, const std::string& text) { load(key, text.c_str(), PMIX_STRING); }
  void add_u16(const char* key, int value) { add_as<std::uint16_t>(key, value, PMIX_UINT16); }
  void add_u32(const char* key, int value) { add_as<std::uint32_t>(key, value, PMIX_UINT32); }
  void add_rank(const char* key, int value) { add_as<pmix_rank_t>(key, value, PMIX_PROC_RANK); }
  void add_bool(const char* key, bool value) { load(key, &value, PMIX_BOOL); }
  // PMIx's compressed form of a list, made by the library itself and taken over by the item.
  void add_regex(const char* key, char* text) {
    pmix_info_t info;
    PMIX_INFO_CONSTRUCT(&info);
    PMIX_LOAD_KEY(info.key, key);
    info.value.type = PMIX_STRING;
    info.value.data.string = text;
    items_.push_back(info);
  }
  void add_array(const char* key, const InfoList& inner) {
    pmix_info_t info;
    PMIX_INFO_CONSTRUCT(&info);
    PMIX_LOAD_KEY(info.key, key);
    info.value.type = PMIX_DATA_ARRAY;
    PMIX_DATA_ARRAY_CREATE(info.value.data.darray, inner.items_.size(), PMIX_INFO);
    auto* array = static_cast<pmix_info_t*>(info.value.data.darray->array);
    for (std::size_t i = 0; i < inner.items_.size(); ++i) PMIX_INFO_XFER(&array[i], &inner.items_[i]);
    items_.push_back(info);
  }
  pmix_info_t* data() { return items_.data(); }
  std::size_t size() const { return items_.size(); }

 private:
  template <class T>
  void add_as(const char* key, int value, pmix_data_type_t type) {
    const T typed = static_cast<T>(value);
    load(key, &typed, type);
  }
  void load(const char* key, const void* value, pmix_data_type_t type) {
    pmix_info_t info;
    PMIX_INFO_CONSTRUCT(&info);
    PMIX_INFO_LOAD(&info, key, value, type);
    items_.push_back(info);
  }
  std::vector<pmix_info_t> items_;
};

void add_node(InfoList& job, int ranks, const std::string& host, const std::string& peers) {
  InfoList node;
  node.add(PMIX_HOSTNAME, host);
  node.add_u32(PMIX_NODEID, 0);
  node.add(PMIX_LOCAL_PEERS, peers);
  node.add_u32(PMIX_LOCAL_SIZE, ranks);
  node.add_u32(PMIX_NODE_SIZE, ranks);
  node.add_rank(PMIX_LOCALLDR, 0);
  job.add_array(PMIX_NODE_INFO_ARRAY, node);
  InfoList app;
  app.add_u32(PMIX_APPNUM, 0);
  app.add_u32(PMIX_APP_SIZE, ranks);
  app.add_rank(PMIX_APPLDR, 0);
  job.add_array(PMIX_APP_INFO_ARRAY, app);
}

void add_process(InfoList& job, int rank, const std::string& host) {
  InfoList process;
  process.add_rank(PMIX_RANK, rank);
  process.add_u32(PMIX_GLOBAL_RANK, rank);
  process.add_u32(PMIX_APP_RANK, rank);
  process.add_u32(PMIX_APPNUM, 0);
  process.add_u16(PMIX_LOCAL_RANK, rank);
  process.add_u16(PMIX_NODE_RANK, rank);
  process.add_u32(PMIX_NODEID, 0);
  process.add(PMIX_HOSTNAME, host);
  process.add_u32(PMIX_REINCARNATION, 0);
  job.add_array(PMIX_PROC_DATA, process);
}

// Sockets live there, and their paths are limited to 107 characters.
std::string parent_folder() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' && std::strlen(chosen) < 40 ? chosen : "/tmp";
}

void start_server(const std::string& folder, const std::string& job) {
  static pmix_server_module_t module;
  module = {};
  module.client_connected2 = on_connected;
  module.client_finalized = on_finalized;
  module.abort = on_abort;
  module.fence_nb = on_fence;
  module.direct_modex = on_direct_modex;
  InfoList options;
  options.add(PMIX_SERVER_TMPDIR, folder);
  options.add(PMIX_SYSTEM_TMPDIR, folder);
  options.add(PMIX_SERVER_NSPACE, job + ".server");
  options.add_rank(PMIX_SERVER_RANK, 0);
  check(PMIx_server_init(&module, options.data(), options.size()), "PMIx_server_init");
}

}  // namespace

PmixServer::PmixServer(int ranks)
    : folder_(parent_folder(), "ananke-pmix", "the PMIx server"),
      job_(fmt::format("ananke.{}.{}", host_name(), getpid())) {
  ANANKE_CHECK(!std::exchange(shared().used, true), "a second PMIx server in one process");
  const BlockedPipeSignal no_pipe_signal;
  Pipe wake(Pipe::Waits::nobody);
  wake_read_ = std::move(wake.read);
  {
    std::lock_guard lock(shared().mutex);
    shared().aborts.clear();
    shared().wake = std::move(wake.write);
  }
  try {
    start_server(folder_.path(), job_);
  } catch (...) {
    close();
    throw;
  }
  try {
    describe_job(ranks);
  } catch (...) {
    PMIx_server_finalize();
    close();
    throw;
  }
}

void PmixServer::describe_job(int ranks) {
  const std::string host = host_name();
  std::string peers;
  for (int rank = 0; rank < ranks; ++rank) peers += (rank > 0 ? "," : "") + std::to_string(rank);
  InfoList job;
  for (const char* key : {PMIX_JOB_SIZE, PMIX_UNIV_SIZE, PMIX_MAX_PROCS, PMIX_LOCAL_SIZE, PMIX_NODE_SIZE}) {
    job.add_u32(key, ranks);
  }
  job.add_u32(PMIX_NUM_NODES, 1);
  job.add_u32(PMIX_JOB_NUM_APPS, 1);
  job.add_bool(PMIX_SPAWNED, false);
  job.add(PMIX_JOBID, job_);
  job.add(PMIX_TMPDIR, folder_.path());
  job.add(PMIX_NSDIR, folder_.path());
  job.add(PMIX_LOCAL_PEERS, peers);
  job.add_rank(PMIX_LOCALLDR, 0);
  job.add(PMIX_NODE_LIST, host);
  job.add(PMIX_ANL_MAP, fmt::format("(vector,(0,1,{}))", ranks));
  char* nodes = nullptr;
  char* processes = nullptr;
  check(PMIx_generate_regex(host.c_str(), &nodes), "PMIx_generate_regex");
  job.add_regex(PMIX_NODE_MAP, nodes);
  check(PMIx_generate_ppn(peers.c_str(), &processes), "PMIx_generate_ppn");
  job.add_regex(PMIX_PROC_MAP, processes);
  add_node(job, ranks, host, peers);
  for (int rank = 0; rank < ranks; ++rank) add_process(job, rank, host);
  Completion completion;
  completion.wait(
      PMIx_server_register_nspace(job_.c_str(), ranks, job.data(), job.size(), Completion::done, &completion),
      "PMIx_server_register_nspace");
}

// Of a client that was killed while it connected the library may keep a lock taken, and finalizing then waits for it
// for ever. What failed must be told all the same, so the library is left as it is after a while.
PmixServer::~PmixServer() {
  const BlockedPipeSignal no_pipe_signal;
  const auto ended = std::make_shared<std::promise<void>>();
  std::thread finalizing([ended] {
    PMIx_server_finalize();
    ended->set_value();
  });
  if (ended->get_future().wait_for(longest_finalizing) == std::future_status::ready) {
    finalizing.join();
  } else {
    finalizing.detach();
    log_warning("the PMIx server does not end within {}; library {}",
                format_duration(std::chrono::duration<double>(longest_finalizing).count()), PMIx_Get_version());
  }
  close();
}

void PmixServer::close() noexcept {
  {
    std::lock_guard lock(shared().mutex);
    shared().wake.close();
  }
  folder_.remove();
}

std::vector<std::string> PmixServer::environment(int rank) {
  pmix_proc_t process;
  PMIX_LOAD_PROCID(&process, job_.c_str(), static_cast<pmix_rank_t>(rank));
  Completion completion;
  completion.wait(PMIx_server_register_client(&process, geteuid(), getegid(), nullptr, Completion::done, &completion),
                  "PMIx_server_register_client");
  char** variables = nullptr;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    // What another server told us about ourselves does not hold for the child.
    if (text.starts_with("PMIX_") && !text.starts_with("PMIX_MCA_")) continue;
    [[maybe_unused]] pmix_status_t status;
    PMIX_ARGV_APPEND(status, variables, *variable);
  }
  const pmix_status_t status = PMIx_server_setup_fork(&process, &variables);
  std::vector<std::string> result;
  for (char** variable = variables; variable != nullptr && *variable != nullptr; ++variable)
    result.emplace_back(*variable);
  PMIX_ARGV_FREE(variables);
  check(status, "PMIx_server_setup_fork");
  return result;
}

std::optional<PmixServer::Abort> PmixServer::take_abort() {
  std::lock_guard lock(shared().mutex);
  if (shared().aborts.empty()) return std::nullopt;
  char byte = 0;
  [[maybe_unused]] const ssize_t ignored = read(wake_read_.get(), &byte, 1);
  Abort abort = std::move(shared().aborts.front());
  shared().aborts.erase(shared().aborts.begin());
  return abort;
}

}  // namespace ananke
