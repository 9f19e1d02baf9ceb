#include "tests/sharing_backend/sharing_communicator.h"

#include <algorithm>
#include <bit>
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

// To the host behind the back of Device::read, which is counted: who exchanges rows does not read.
std::vector<std::int32_t> SharingCommunicator::column(Stream& stream, const TensorView& counts, std::int64_t column) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(counts.elements())), one;
  device_.copy(stream, all.data(), counts.data, counts.bytes());
  stream.synchronize();
  for (std::int64_t p = 0; p < size_; ++p) one.push_back(all[static_cast<std::size_t>(p * counts.shape[1] + column)]);
  return one;
}

void SharingCommunicator::all_to_all_rows(Stream& stream, const RowExchange& a) {
  const std::int64_t row = a.send.shape[1];
  std::vector<std::int64_t> leaving, arriving;
  for (const std::int32_t count : column(stream, a.send_counts, a.column)) leaving.push_back(count * row);
  const auto own = static_cast<std::size_t>(rank_);
  for (const Hub::Shown& theirs : hub_->show(rank_, {nullptr, leaving})) arriving.push_back(theirs.counts.at(own));
  hub_->seen();
  const std::int64_t in = std::accumulate(arriving.begin(), arriving.end(), std::int64_t{0});
  ANANKE_CHECK(in <= static_cast<std::int64_t>(a.receive.bytes()), "{} bytes arrive, {} have room", in,
               a.receive.bytes());
  const auto flat = [](const TensorView& rows) { return rows.reshaped({rows.elements()}); };
  all_to_all(stream, flat(a.send), leaving, flat(a.receive), arriving);
  for (std::size_t p = 0; p < arriving.size() && a.receive_counts; ++p) {
    const auto count = static_cast<std::int32_t>(arriving[p] / row);
    const TensorView to =
        a.receive_counts.slice(static_cast<std::int64_t>(p) * a.receive_counts.shape[1] + a.column, 1);
    device_.copy(stream, to.data, &count, sizeof count);
    stream.synchronize();
  }
  if (a.received) *static_cast<std::int64_t*>(a.received.data) += in - arriving[own];
}

void SharingCommunicator::sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) {
  const auto count = static_cast<std::size_t>(sum.elements());
  std::vector<float> before(count);
  device_.copy(stream, before.data(), sum.data, sum.bytes());
  const auto& all = stage(stream, parts);
  result_.resize(sum.bytes());
  for (std::size_t i = 0; i < count; ++i) {
    float total = 0;
    for (const Hub::Shown& theirs : all) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, theirs.data + 2 * (static_cast<std::size_t>(rank_) * count + i), sizeof bits);
      total += std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    if (add) total = before[i] + total;
    std::memcpy(result_.data() + i * sizeof total, &total, sizeof total);
  }
  land(stream, sum);
}

}  // namespace ananke::testing
