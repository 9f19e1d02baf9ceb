#include <algorithm>
#include <memory>
#include <thread>

#include "plugins/gpu_checks/gpu_checks.h"
#include "plugins/gpu_checks/libraries.h"
#include "runtime/base/error.h"

namespace ananke::gpu_checks {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t part = 128 << 20;  // bytes that each GPU gives

// One GPU of the group.
struct Member {
  int gpu = 0;
  ncclComm_t communicator = nullptr;
  std::unique_ptr<Stream> stream = {};
  std::unique_ptr<DeviceMemory> give = {}, take = {};
  cudaEvent_t begin = nullptr, end = nullptr;
};

// All GPUs by one thread, so every call to NCCL is one of a group, and none blocks.
class Group {
 public:
  Group(const std::vector<int>& gpus, milliseconds deadline) : api_(load_nccl()), until_(Clock::now() + deadline) {
    for (const int gpu : gpus) members_.push_back({.gpu = gpu});
    try {
      connect();
    } catch (...) {
      close();
      throw;
    }
  }
  ~Group() { close(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Of one all-gather, `times` of them one after another; the slowest GPU's time.
  double seconds(int times) {
    for (Member& member : members_) {
      use(member);
      check(cudaEventRecord(member.begin, *member.stream), "record an event");
    }
    for (int i = 0; i < times; ++i) gather();
    double slowest = 0;
    for (Member& member : members_) {
      use(member);
      check(cudaEventRecord(member.end, *member.stream), "record an event");
    }
    for (Member& member : members_) {
      use(member);
      wait_for(member.end);
      float span = 0;
      check(cudaEventElapsedTime(&span, member.begin, member.end), "read a time");
      slowest = std::max(slowest, span / 1e3 / times);
    }
    return slowest;
  }

 private:
  static void use(const Member& member) { check(cudaSetDevice(member.gpu), "use the GPU"); }

  void connect() {
    ncclUniqueId id{};
    require(api_.unique_id(&id), "make an id");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const int count = static_cast<int>(members_.size());
    for (Member& member : members_) {
      use(member);
      member.stream = std::make_unique<Stream>();
      member.give = std::make_unique<DeviceMemory>(part);
      member.take = std::make_unique<DeviceMemory>(part * members_.size());
      check(cudaMemsetAsync(member.give->data(), 1, part, *member.stream), "clear memory");
      check(cudaEventCreate(&member.begin), "make an event");
      check(cudaEventCreate(&member.end), "make an event");
    }
    require(api_.group_start(), "begin a group");
    for (int rank = 0; rank < count; ++rank) {
      Member& member = members_[static_cast<std::size_t>(rank)];
      use(member);
      require(api_.init(&member.communicator, count, id, rank, &config), "connect the GPUs");
    }
    require(api_.group_end(), "connect the GPUs");
    settle("connect the GPUs");
  }

  void gather() {
    require(api_.group_start(), "begin a group");
    for (Member& member : members_) {
      use(member);
      require(api_.all_gather(member.give->data(), member.take->data(), part / 2, ncclBfloat16, member.communicator,
                              *member.stream),
              "gather");
    }
    require(api_.group_end(), "gather");
    settle("gather");
  }

  void require(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fail(ErrorKind::resource, "cannot {}: NCCL says {}; NCCL_DEBUG=WARN prints more", what, api_.error_text(result));
  }
  // Until NCCL has done what it was asked for.
  void settle(const char* what) {
    for (const Member& member : members_) {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) {
        require(api_.state(member.communicator, &state), what);
        require(state, what);
        if (state == ncclInProgress) pause(what);
      }
    }
  }
  void wait_for(cudaEvent_t event) {
    for (;;) {
      const cudaError_t state = cudaEventQuery(event);
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) check(state, "gather");
      pause("gather");
    }
  }
  void pause(const char* what) const {
    if (Clock::now() > until_) fail(ErrorKind::stalled, "NCCL did not come to an end in time when it was to {}", what);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  void close() {
    for (Member& member : members_) {
      cudaSetDevice(member.gpu);
      if (member.communicator) api_.abort(member.communicator);
      if (member.begin) cudaEventDestroy(member.begin);
      if (member.end) cudaEventDestroy(member.end);
      member.give.reset();
      member.take.reset();
      member.stream.reset();
    }
  }

  const Nccl api_;
  const Clock::time_point until_;
  std::vector<Member> members_;
};

}  // namespace

double gather_rate(const std::vector<int>& gpus, milliseconds least, milliseconds deadline) {
  Group group(gpus, deadline);
  group.seconds(2);
  const double one = std::max(group.seconds(2), 1e-6);
  constexpr std::size_t spans = 5;
  const int times = static_cast<int>(std::clamp(std::chrono::duration<double>(least).count() / spans / one, 1.0, 1e5));
  std::vector<double> seconds;
  for (std::size_t i = 0; i < spans; ++i) seconds.push_back(group.seconds(times));
  std::ranges::sort(seconds);
  const double received = static_cast<double>(part) * static_cast<double>(gpus.size() - 1);
  return received / seconds[spans / 2] / 1e9;
}

}  // namespace ananke::gpu_checks
