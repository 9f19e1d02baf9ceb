#include "tests/sharing_backend/sharing_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/base/error.h"

namespace ananke::testing {
namespace {

constexpr std::chrono::seconds deadline(60);

// In rank order, so the same bits on every rank and in every run.
template <class T>
void reduce(const std::vector<Hub::Shown>& all, std::size_t first, std::size_t count, Reduction reduction,
            std::byte* result) {
  for (std::size_t i = 0; i < count; ++i) {
    T total{};
    for (std::size_t p = 0; p < all.size(); ++p) {
      T one;
      std::memcpy(&one, all[p].data + (first + i) * sizeof(T), sizeof one);
      total = p == 0 ? one : reduction == Reduction::sum ? static_cast<T>(total + one) : std::max(total, one);
    }
    std::memcpy(result + i * sizeof(T), &total, sizeof total);
  }
}

}  // namespace

const std::vector<Hub::Shown>& Hub::show(int rank, Shown mine) {
  {
    std::lock_guard lock(mutex_);
    shown_[static_cast<std::size_t>(rank)] = std::move(mine);
  }
  meet();
  return shown_;
}

void Hub::abort() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void Hub::meet() {
  std::unique_lock lock(mutex_);
  const std::uint64_t now = meetings_;
  if (++here_ == shown_.size()) {
    here_ = 0;
    ++meetings_;
    changed_.notify_all();
    return;
  }
  const bool came = changed_.wait_for(lock, deadline, [&] { return meetings_ != now || aborted_; });
  if (aborted_) fail(ErrorKind::worker_failed, "a collective was aborted");
  if (!came) fail(ErrorKind::stalled, "{} of {} ranks came to a collective", here_, shown_.size());
}

const std::vector<Hub::Shown>& SharingCommunicator::stage(Stream& stream, const TensorView& send,
                                                          std::vector<std::int64_t> counts) {
  mine_.resize(send.bytes());
  device_.copy(stream, mine_.data(), send.data, send.bytes());
  stream.synchronize();
  return hub_->show(rank_, {mine_.data(), std::move(counts)});
}

void SharingCommunicator::land(Stream& stream, const TensorView& receive) {
  hub_->seen();
  device_.copy(stream, receive.data, result_.data(), receive.bytes());
  stream.synchronize();
}

void SharingCommunicator::all_gather(Stream& stream, const TensorView& send, const TensorView& receive) {
  const auto& all = stage(stream, send);
  result_.resize(receive.bytes());
  for (std::size_t p = 0; p < all.size(); ++p) {
    if (send.bytes() > 0) std::memcpy(result_.data() + p * send.bytes(), all[p].data, send.bytes());
  }
  land(stream, receive);
}

void SharingCommunicator::reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) {
  const auto& all = stage(stream, send);
  result_.resize(receive.bytes());
  const auto count = static_cast<std::size_t>(receive.elements());
  reduce<float>(all, static_cast<std::size_t>(rank_) * count, count, Reduction::sum, result_.data());
  land(stream, receive);
}

void SharingCommunicator::all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) {
  const auto& all = stage(stream, buffer);
  result_.resize(buffer.bytes());
  const auto count = static_cast<std::size_t>(buffer.elements());
  switch (buffer.dtype) {
    case DType::f32: reduce<float>(all, 0, count, reduction, result_.data()); break;
    case DType::f64: reduce<double>(all, 0, count, reduction, result_.data()); break;
    case DType::i64: reduce<std::int64_t>(all, 0, count, reduction, result_.data()); break;
    default: fail(ErrorKind::internal, "all_reduce of {}", name_of(buffer.dtype));
  }
  land(stream, buffer);
}

void SharingCommunicator::broadcast(Stream& stream, const TensorView& buffer, int root) {
  const auto& all = stage(stream, buffer);
  const std::byte* from = all.at(static_cast<std::size_t>(root)).data;
  result_.assign(from, from + buffer.bytes());
  land(stream, buffer);
}

void SharingCommunicator::all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                                     const TensorView& receive, std::span<const std::int64_t> receive_counts) {
  const auto& all = stage(stream, send, {send_counts.begin(), send_counts.end()});
  const std::size_t each = size_of(send.dtype);
  result_.clear();
  for (std::size_t p = 0; p < all.size(); ++p) {
    const std::vector<std::int64_t>& counts = all[p].counts;
    const auto own = static_cast<std::size_t>(rank_);
    ANANKE_CHECK(counts.at(own) == receive_counts[p], "rank {} sends {} elements to rank {}, which expects {}", p,
                 counts[own], rank_, receive_counts[p]);
    const auto before = std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0});
    const std::byte* begin = all[p].data + static_cast<std::size_t>(before) * each;
    result_.insert(result_.end(), begin, begin + static_cast<std::size_t>(counts[own]) * each);
  }
  const auto count = static_cast<std::int64_t>(result_.size() / each);
  land(stream, {receive.data, receive.dtype, {count}});
}

}  // namespace ananke::testing
