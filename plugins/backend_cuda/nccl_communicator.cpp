#include "plugins/backend_cuda/nccl_communicator.h"

#include <cstring>
#include <thread>
#include <utility>

#include "plugins/backend_cuda/check.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t most_tracked = 128;  // collectives whose ends are looked for one by one
constexpr auto spin = std::chrono::microseconds(500);
constexpr auto nap = std::chrono::microseconds(50);
constexpr std::size_t most_told = 1024;  // bytes that a rank tells the others
constexpr auto farewell_to_nccl = std::chrono::seconds(5);

void pause_since(WatchClock::time_point start) {
  if (WatchClock::now() - start < spin) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(nap);
  }
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::i64: return ncclInt64;
    default: fail(ErrorKind::internal, "NCCL is not asked to reduce {}", name_of(dtype));
  }
}

ncclUniqueId unique_id(const std::string& bytes) {
  ncclUniqueId id{};
  ANANKE_CHECK(bytes.size() == sizeof id, "an NCCL id of {} bytes, not {}", bytes.size(), sizeof id);
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

std::byte* bytes_of(const TensorView& tensor) { return static_cast<std::byte*>(tensor.data); }

}  // namespace

NcclCommunicator::NcclCommunicator(Setup setup, std::unique_ptr<Peers> peers, CudaDevice& device,
                                   CollectiveWatch& watch)
    : setup_(std::move(setup)),
      checks_{setup_.name, setup_.rank, size()},
      peers_(std::move(peers)),
      device_(device),
      watch_(watch),
      patience_({setup_.step_deadline, setup_.farewell}) {
  ANANKE_CHECK(peers_ || size() == 1, "communicator {} of {} ranks knows no peers", setup_.name, size());
  if (!peers_) return;
  use_device(device_.facts().device);
  for (std::size_t i = 0; i < most_tracked; ++i) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    events_.push_back(event);
  }
  spare_ = events_;
  try {
    connect();
  } catch (...) {
    abort_nccl();
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    throw;
  }
  watch_.add(*this);
}

NcclCommunicator::~NcclCommunicator() {
  if (!peers_) return;
  watch_.remove(*this);
  closed_ = true;
  cudaSetDevice(device_.facts().device);
  close_exchange();
  if (!aborted_) say_goodbye();
  peers_->leave();
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void NcclCommunicator::connect() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (setup_.min_ctas > 0) config.minCTAs = setup_.min_ctas;
  if (setup_.max_ctas > 0) config.maxCTAs = setup_.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  config.commName = setup_.name.c_str();
#endif
  const ncclUniqueId id = unique_id(peers_->nccl_id());
  Lock lock(nccl_mutex_);
  const ncclResult_t result = ncclCommInitRankConfig(&nccl_, size(), id, rank(), &config);
  wait_until_issued(lock, result, "its set-up", setup_.connect_deadline);
}

// Polls until NCCL has done what it was asked for, which for a collective means that its kernel is on the stream.
void NcclCommunicator::wait_until_issued(Lock& lock, ncclResult_t result, const char* what,
                                         std::chrono::milliseconds deadline) {
  if (result == ncclSuccess) return;
  const PluginWait wait;
  const WatchClock::time_point start = WatchClock::now();
  WatchClock::time_point looked = start;
  while (result == ncclInProgress) {
    lock.unlock();
    pause_since(start);
    const WatchClock::time_point now = WatchClock::now();
    std::string lost;
    if (now - looked > setup_.farewell) {
      looked = now;
      lost = peers_->lost();
    }
    if (!lost.empty()) give_up(ErrorKind::worker_failed, what, lost);
    if (now - start > deadline) {
      give_up(ErrorKind::stalled, what,
              fmt::format("not all ranks came within {}",
                          format_duration(std::chrono::duration<double>(deadline).count())));
    }
    lock.lock();
    if (aborted_) break;
    if (ncclCommGetAsyncError(nccl_, &result) != ncclSuccess) result = ncclInternalError;
  }
  if (aborted_) {
    lock.unlock();
    device_.failure()->rethrow();
    fail(ErrorKind::worker_failed, "{}: it was aborted", context(what));
  }
  if (result == ncclSuccess) return;
  const char* last = ncclGetLastError(nccl_);
  const std::string reason =
      fmt::format("NCCL says {}{}{}", ncclGetErrorString(result), last && *last ? ": " : "", last ? last : "");
  lock.unlock();
  give_up(ErrorKind::worker_failed, what, reason + "; NCCL_DEBUG=WARN prints more");
  device_.failure()->rethrow();
}

template <class Call>
void NcclCommunicator::issue(CudaStream& stream, const char* what, Call call) {
  refuse_if_closed(what);
  issuing_ = what;
  struct Done {
    std::atomic<const char*>& issuing;
    ~Done() { issuing = nullptr; }
  } done{issuing_};
  cudaStream_t raw = stream.raw();
  Lock lock(nccl_mutex_);
  if (aborted_) {
    lock.unlock();
    device_.failure()->rethrow();
    refuse_if_closed(what);
  }
  wait_until_issued(lock, call(raw), what, setup_.step_deadline);
  track(raw, what);
}

// Recording may block where the stream has more work than the driver's queue holds, so it is not done under the mutex
// that the watch needs.
void NcclCommunicator::track(cudaStream_t stream, const char* what) {
  cudaEvent_t event = nullptr;
  {
    std::lock_guard lock(flights_mutex_);
    if (spare_.empty()) reap();
    if (spare_.empty()) {  // the last one's event stands for both
      event = flights_.back().end;
      flights_.pop_back();
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    flights_.push_back({event, what, ++begun_, false});
  }
  const cudaError_t result = cudaEventRecord(event, stream);
  {
    std::lock_guard lock(flights_mutex_);
    flights_.back().recorded = true;
  }
  check(result, "record the end of a collective");
}

// With flights_mutex_. What CUDA says of a broken context is said by whoever waits for the stream.
void NcclCommunicator::reap() {
  while (!flights_.empty() && flights_.front().recorded && cudaEventQuery(flights_.front().end) != cudaErrorNotReady) {
    spare_.push_back(flights_.front().end);
    flights_.pop_front();
  }
}

bool NcclCommunicator::idle() {
  if (issuing_) return false;
  std::lock_guard lock(flights_mutex_);
  cudaSetDevice(device_.facts().device);
  reap();
  return flights_.empty();
}

void NcclCommunicator::look(WatchClock::time_point now) noexcept {
  if (aborted_ || closed_) return;
  try {
    std::string what;
    std::uint64_t done = 0, begun = 0;
    {
      std::lock_guard lock(flights_mutex_);
      cudaSetDevice(device_.facts().device);
      reap();
      begun = begun_;
      done = flights_.empty() ? begun_ : flights_.front().number - 1;
      if (!flights_.empty()) what = flights_.front().what;
    }
    const std::string lost = done < begun ? peers_->lost() : "";
    switch (patience_.judge(done, begun, !lost.empty(), now)) {
      case Patience::Verdict::lost: return give_up(ErrorKind::worker_failed, what, lost);
      case Patience::Verdict::stalled:
        return give_up(ErrorKind::stalled, what,
                       fmt::format("it is not done {} after the one before it; a rank stands still or is cut off "
                                   "(deadlines.step)",
                                   format_duration(std::chrono::duration<double>(setup_.step_deadline).count())));
      case Patience::Verdict::wait: break;
    }
    Lock lock(nccl_mutex_, std::try_to_lock);
    if (!lock || aborted_) return;
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(nccl_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return;
    const char* last = ncclGetLastError(nccl_);
    const std::string reason =
        fmt::format("NCCL says {}{}{}", ncclGetErrorString(state), last && *last ? ": " : "", last ? last : "");
    lock.unlock();
    give_up(ErrorKind::worker_failed, what.empty() ? "between collectives" : what, reason);
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

void NcclCommunicator::give_up(ErrorKind kind, const std::string& what, const std::string& reason) noexcept {
  closed_ = true;
  device_.failure()->set(kind, fmt::format("{}: {}", context(what), reason));
  peers_->leave();
  {
    std::lock_guard lock(exchange_mutex_);
    if (exchange_) exchange_->stop();
  }
  abort_nccl();
}

void NcclCommunicator::abort_nccl() noexcept {
  // A thread may be inside NCCL, held up by a full stream; NCCL allows to abort beside it.
  Lock lock(nccl_mutex_, std::chrono::seconds(2));
  if (aborted_.exchange(true)) return;
  cudaSetDevice(device_.facts().device);
  if (nccl_) ncclCommAbort(nccl_);
  nccl_ = nullptr;
}

// Before NCCL's farewell, which waits for the others: nobody gives memory back that others still have open.
void NcclCommunicator::close_exchange() noexcept {
  if (!exchange_) return;
  try {
    const WatchClock::time_point start = WatchClock::now();
    if (!idle()) {
      exchange_->stop();
      abort_nccl();
    }
    while (!idle() && WatchClock::now() - start < farewell_to_nccl) pause_since(start);
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
  std::lock_guard lock(exchange_mutex_);
  exchange_.reset();
}

// All work is done: lets NCCL send what it still holds for others, and waits for them a short while.
void NcclCommunicator::say_goodbye() noexcept {
  if (!idle() || device_.failure()->failed()) return abort_nccl();
  const Lock lock(nccl_mutex_);
  if (aborted_) return;
  const WatchClock::time_point start = WatchClock::now();
  ncclResult_t state = ncclCommFinalize(nccl_);
  while (state == ncclInProgress && WatchClock::now() - start < farewell_to_nccl) {
    pause_since(start);
    if (ncclCommGetAsyncError(nccl_, &state) != ncclSuccess) state = ncclInternalError;
  }
  aborted_ = true;
  if (state == ncclSuccess) {
    ncclCommDestroy(nccl_);
  } else {
    ncclCommAbort(nccl_);
  }
  nccl_ = nullptr;
}

void NcclCommunicator::abort() noexcept {
  if (!peers_ || aborted_) return;
  try {
    if (idle()) {  // nothing waits here; the others see it when they wait for this rank
      closed_ = true;
      peers_->leave();
      return;
    }
    give_up(ErrorKind::worker_failed, issuing_ ? issuing_.load() : "a collective", "it was aborted on this rank");
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

void NcclCommunicator::refuse_if_closed(const char* what) const {
  if (!closed_) return;
  device_.failure()->rethrow();
  fail(ErrorKind::worker_failed, "{}: the communicator was aborted", context(what));
}

std::string NcclCommunicator::context(const std::string& what) const {
  return fmt::format("communicator {} of {}, {} on rank {}", setup_.name, format_ranks(setup_.ranks), what,
                     setup_.ranks[static_cast<std::size_t>(setup_.rank)]);
}

void NcclCommunicator::all_gather(Stream& stream, const TensorView& send, const TensorView& receive) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.all_gather(send, receive);
  if (send.bytes() == 0 || (size() == 1 && send.data == receive.data)) return;
  if (size() == 1) return device_.copy(stream, receive.data, send.data, send.bytes());
  issue(mine, "all_gather",
        [&](cudaStream_t raw) { return ncclAllGather(send.data, receive.data, send.bytes(), ncclUint8, nccl_, raw); });
}

void NcclCommunicator::reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.reduce_scatter(send, receive);
  if (receive.bytes() == 0) return;
  if (size() == 1) return device_.copy(stream, receive.data, send.data, send.bytes());
  issue(mine, "reduce_scatter", [&](cudaStream_t raw) {
    return ncclReduceScatter(send.data, receive.data, static_cast<std::size_t>(receive.elements()), ncclFloat32,
                             ncclSum, nccl_, raw);
  });
}

void NcclCommunicator::all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.all_reduce(buffer);
  if (size() == 1 || buffer.bytes() == 0) return;
  issue(mine, "all_reduce", [&](cudaStream_t raw) {
    return ncclAllReduce(buffer.data, buffer.data, static_cast<std::size_t>(buffer.elements()), type_of(buffer.dtype),
                         reduction == Reduction::sum ? ncclSum : ncclMax, nccl_, raw);
  });
}

void NcclCommunicator::broadcast(Stream& stream, const TensorView& buffer, int root) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.broadcast(root);
  if (size() == 1 || buffer.bytes() == 0) return;
  issue(mine, "broadcast", [&](cudaStream_t raw) {
    return ncclBroadcast(buffer.data, buffer.data, buffer.bytes(), ncclUint8, root, nccl_, raw);
  });
}

void NcclCommunicator::all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                                  const TensorView& receive, std::span<const std::int64_t> receive_counts) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.all_to_all(send, send_counts, receive, receive_counts);
  const auto ranks = static_cast<std::size_t>(size()), own = static_cast<std::size_t>(rank());
  const std::size_t each = size_of(send.dtype);
  struct Part {
    std::byte* data;
    std::size_t bytes;
  };
  std::vector<Part> out(ranks), in(ranks);
  std::size_t from = 0, to = 0;
  bool travels = false;
  for (std::size_t p = 0; p < ranks; ++p) {
    out[p] = {bytes_of(send) + from, static_cast<std::size_t>(send_counts[p]) * each};
    in[p] = {bytes_of(receive) + to, static_cast<std::size_t>(receive_counts[p]) * each};
    from += out[p].bytes;
    to += in[p].bytes;
    travels |= p != own && out[p].bytes + in[p].bytes > 0;
  }
  ANANKE_CHECK(out[own].bytes == in[own].bytes, "communicator {}: all_to_all sends {} bytes to itself and expects {}",
               setup_.name, out[own].bytes, in[own].bytes);
  device_.copy(stream, in[own].data, out[own].data, in[own].bytes);
  if (!travels) return refuse_if_closed("all_to_all");
  issue(mine, "all_to_all", [&](cudaStream_t raw) {
    ncclResult_t result = ncclGroupStart();
    // Ranks start with different peers, so that not all send to one.
    for (std::size_t i = 1; i < ranks && result == ncclSuccess; ++i) {
      const std::size_t next = (own + i) % ranks, before = (own + ranks - i) % ranks;
      if (out[next].bytes) {
        result = ncclSend(out[next].data, out[next].bytes, ncclUint8, static_cast<int>(next), nccl_, raw);
      }
      if (in[before].bytes && (result == ncclSuccess || result == ncclInProgress)) {
        result = ncclRecv(in[before].data, in[before].bytes, ncclUint8, static_cast<int>(before), nccl_, raw);
      }
      if (result == ncclInProgress) result = ncclSuccess;  // told by the end of the group
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  });
}

// By NCCL, since whoever made the communicator may have gone.
std::vector<std::string> NcclCommunicator::tell(Stream& stream, const std::string& own) {
  const auto ranks = static_cast<std::size_t>(size());
  ANANKE_CHECK(own.size() < most_told, "{} bytes to tell other ranks, {} have room", own.size(), most_told - 1);
  const Buffer there = device_.memory().allocate((ranks + 1) * most_told, "exchange between GPUs, start");
  const Buffer here = device_.host_memory().allocate(ranks * most_told, "exchange between GPUs, start (host)");
  std::memset(here.data(), 0, most_told);
  std::memcpy(here.data(), own.data(), own.size());
  const auto bytes = static_cast<std::int64_t>(most_told), all = static_cast<std::int64_t>(ranks) * bytes;
  const TensorView mine = there.view(DType::u8, {bytes}, ranks * most_told), everyones = there.view(DType::u8, {all});
  device_.copy(stream, mine.data, here.data(), most_told);
  all_gather(stream, mine, everyones);
  device_.copy(stream, here.data(), everyones.data, everyones.bytes());
  stream.synchronize();
  std::vector<std::string> texts;
  for (std::size_t p = 0; p < ranks; ++p) texts.emplace_back(static_cast<const char*>(here.data()) + p * most_told);
  return texts;
}

bool NcclCommunicator::share(Stream& stream, const TensorView& memory) {
  CudaStream::of(stream);
  if (size() == 1 || !setup_.share) return false;
  if (!exchange_) {
    auto made = std::make_unique<PeerExchange>(
        PeerExchange::Setup{rank(), size(), setup_.row_blocks, setup_.sum_blocks}, device_);
    std::lock_guard lock(exchange_mutex_);
    exchange_ = std::move(made);
  }
  const std::string reason = exchange_->share(memory, [&](const std::string& own) { return tell(stream, own); });
  if (reason.empty()) {
    checks_.shared.push_back(memory);
  } else {
    log_info("communicator {} of {} goes by NCCL alone: {}", setup_.name, format_ranks(setup_.ranks), reason);
    if (checks_.shared.empty()) close_exchange();
  }
  return reason.empty();
}

PeerExchange& NcclCommunicator::exchange() {
  ANANKE_CHECK(exchange_, "communicator {}: an exchange between GPUs that share no memory", setup_.name);
  return *exchange_;
}

void NcclCommunicator::all_to_all_rows(Stream& stream, const RowExchange& a) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.all_to_all_rows(a);
  issue(mine, "all_to_all_rows", [&](cudaStream_t raw) {
    exchange().all_to_all_rows(raw, a);
    return ncclSuccess;
  });
}

void NcclCommunicator::sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) {
  CudaStream& mine = CudaStream::of(stream);
  checks_.sum_parts(parts, sum);
  if (sum.elements() == 0) return;
  issue(mine, "sum_parts", [&](cudaStream_t raw) {
    exchange().sum_parts(raw, parts, sum, add);
    return ncclSuccess;
  });
}

}  // namespace ananke::cuda
