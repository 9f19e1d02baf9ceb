// The least that a program with these libraries needs from its start to its first collective: an embedded PMIx server,
// clients that exchange Gloo's addresses by one fence, a full mesh, one all-reduce.
//   bare_launch RANKS          starts itself RANKS times; rank 0 prints CLOCK_MONOTONIC in ns after the all-reduce
//   bare_launch                a rank, under another PMIx server: `srun --mpi=pmix`. BARE_INTERFACE names the network
//                              interface by which it finds the others; unset: all are on this node
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <pmix.h>
#include <pmix_server.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

extern char** environ;

namespace {

void check(pmix_status_t status, const char* what) {
  if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return;
  std::fprintf(stderr, "bare_launch: %s: %s\n", what, PMIx_Error_string(status));
  std::exit(1);
}

long long now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000ll + time.tv_nsec;
}

// ---- a rank

class FenceStore final : public gloo::rendezvous::Store {
 public:
  explicit FenceStore(const pmix_proc_t& me) : me_(me) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    if (key.starts_with("rank_")) return;
    pmix_value_t value;
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = const_cast<char*>(data.data());
    value.data.bo.size = data.size();
    check(PMIx_Put(PMIX_GLOBAL, "address", &value), "PMIx_Put");
    check(PMIx_Commit(), "PMIx_Commit");
    pmix_info_t collect;
    const bool yes = true;
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    check(PMIx_Fence(nullptr, 0, &collect, 1), "PMIx_Fence");
  }
  std::vector<char> get(const std::string& key) override {
    if (key.starts_with("rank_")) return {'-'};
    pmix_proc_t peer;
    PMIX_LOAD_PROCID(&peer, me_.nspace, static_cast<pmix_rank_t>(std::stoul(key)));
    pmix_value_t* value = nullptr;
    check(PMIx_Get(&peer, "address", nullptr, 0, &value), "PMIx_Get");
    std::vector<char> bytes(value->data.bo.bytes, value->data.bo.bytes + value->data.bo.size);
    PMIX_VALUE_RELEASE(value);
    return bytes;
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  pmix_proc_t me_;
};

int work() {
  pmix_proc_t me, job;
  check(PMIx_Init(&me, nullptr, 0), "PMIx_Init");
  PMIX_LOAD_PROCID(&job, me.nspace, PMIX_RANK_WILDCARD);
  pmix_value_t* size = nullptr;
  check(PMIx_Get(&job, PMIX_JOB_SIZE, nullptr, 0, &size), "PMIx_Get");
  gloo::transport::tcp::attr attributes;
  const char* interface = std::getenv("BARE_INTERFACE");
  if (interface != nullptr) {
    attributes.iface = interface;
  } else {
    attributes.hostname = "127.0.0.1";
  }
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context =
      std::make_shared<gloo::rendezvous::Context>(static_cast<int>(me.rank), static_cast<int>(size->data.uint32));
  FenceStore store(me);
  context->connectFullMesh(store, device);
  float one = 1;
  gloo::AllreduceOptions options(context);
  options.setOutput(&one, 1);
  options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t) {
    *static_cast<float*>(out) = *static_cast<const float*>(a) + *static_cast<const float*>(b);
  });
  gloo::allreduce(options);
  if (me.rank == 0) std::printf("%lld\n", now_ns());
  std::fflush(stdout);
  check(PMIx_Finalize(nullptr, 0), "PMIx_Finalize");
  return one == static_cast<float>(size->data.uint32) ? 0 : 1;
}

// ---- the launcher

struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  static void call(pmix_status_t status, void* self) {
    check(status, "a registration");
    auto* completion = static_cast<Completion*>(self);
    std::lock_guard lock(completion->mutex);
    completion->done = true;
    completion->changed.notify_all();
  }
  void wait(pmix_status_t accepted) {
    check(accepted, "a registration");
    if (accepted == PMIX_OPERATION_SUCCEEDED) return;
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
};

pmix_info_t info_of(const char* key, const void* value, pmix_data_type_t type) {
  pmix_info_t info;
  PMIX_INFO_CONSTRUCT(&info);
  PMIX_INFO_LOAD(&info, key, value, type);
  return info;
}

void register_job(const char* name, std::uint32_t ranks) {
  std::string peers;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) peers += (rank > 0 ? "," : "") + std::to_string(rank);
  char *nodes = nullptr, *processes = nullptr;
  check(PMIx_generate_regex("localhost", &nodes), "PMIx_generate_regex");
  check(PMIx_generate_ppn(peers.c_str(), &processes), "PMIx_generate_ppn");
  std::vector<pmix_info_t> job;
  for (const char* key : {PMIX_JOB_SIZE, PMIX_UNIV_SIZE, PMIX_LOCAL_SIZE}) {
    job.push_back(info_of(key, &ranks, PMIX_UINT32));
  }
  job.push_back(info_of(PMIX_LOCAL_PEERS, peers.c_str(), PMIX_STRING));
  job.push_back(info_of(PMIX_NODE_MAP, nodes, PMIX_STRING));
  job.push_back(info_of(PMIX_PROC_MAP, processes, PMIX_STRING));
  Completion completion;
  completion.wait(PMIx_server_register_nspace(name, static_cast<int>(ranks), job.data(), job.size(), Completion::call,
                                              &completion));
}

pmix_status_t finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

int launch(std::uint32_t ranks) {
  char folder[] = "/tmp/bare_launch.XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  pmix_server_module_t module{};
  module.client_finalized = finalized;
  pmix_info_t where = info_of(PMIX_SERVER_TMPDIR, folder, PMIX_STRING);
  check(PMIx_server_init(&module, &where, 1), "PMIx_server_init");
  register_job("bare", ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    pmix_proc_t process;
    PMIX_LOAD_PROCID(&process, "bare", rank);
    Completion completion;
    completion.wait(
        PMIx_server_register_client(&process, geteuid(), getegid(), nullptr, Completion::call, &completion));
    char** environment = nullptr;
    for (char** one = environ; *one != nullptr; ++one) {
      [[maybe_unused]] pmix_status_t status;
      PMIX_ARGV_APPEND(status, environment, *one);
    }
    check(PMIx_server_setup_fork(&process, &environment), "PMIx_server_setup_fork");
    if (fork() == 0) {
      execle("/proc/self/exe", "bare_launch", nullptr, environment);
      _exit(127);
    }
  }
  int result = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    wait(&status);
    result |= status;
  }
  PMIx_server_finalize();
  std::filesystem::remove_all(folder);
  return result == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return argc > 1 ? launch(static_cast<std::uint32_t>(std::atoi(argv[1]))) : work(); }
