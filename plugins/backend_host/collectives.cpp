#include "plugins/backend_host/collectives.h"

#include <algorithm>
#include <cstring>

#include "plugins/backend_host/reduce.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

// Up to here latency counts more than traffic: every rank gets everything and reduces all of it.
constexpr std::size_t at_once_bytes = 64 << 10;

std::byte* bytes_of(const TensorView& tensor) { return static_cast<std::byte*>(tensor.data); }

}  // namespace

Collectives::Collectives(Transport& transport, int rank, int size, Arena& memory)
    : transport_(transport),
      rank_(rank),
      size_(size),
      memory_(memory),
      sends_(static_cast<std::size_t>(size)),
      receives_(static_cast<std::size_t>(size)),
      terms_(static_cast<std::size_t>(size)) {}

void Collectives::clear() {
  std::fill(sends_.begin(), sends_.end(), Part{});
  std::fill(receives_.begin(), receives_.end(), Part{});
}

void* Collectives::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_ = Buffer();
    scratch_ = memory_.allocate(bytes, "communicator scratch");
  }
  return scratch_.data();
}

void Collectives::all_gather(const TensorView& send, const TensorView& receive) {
  const std::size_t block = send.bytes();
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = {send.data, block};
    receives_[p] = {bytes_of(receive) + p * block, block};
  }
  exchange();
  void* own = receives_[static_cast<std::size_t>(rank_)].data;
  if (own != send.data) std::memcpy(own, send.data, block);
  transport_.finish();
}

// What arrived and the own term, in rank order.
void Collectives::reduce_arrived(DType dtype, Reduction reduction, const void* own, void* out, std::int64_t count) {
  for (std::size_t p = 0; p < terms_.size(); ++p) terms_[p] = receives_[p].data;
  terms_[static_cast<std::size_t>(rank_)] = own;
  reduce_in_order(dtype, reduction, terms_, out, count);
}

void Collectives::reduce_scatter(const TensorView& send, const TensorView& receive) {
  const std::size_t block = receive.bytes();
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = {bytes_of(send) + p * block, block};
    receives_[p] = {nullptr, block};
  }
  exchange();
  reduce_arrived(send.dtype, Reduction::sum, sends_[static_cast<std::size_t>(rank_)].data, receive.data,
                 receive.elements());
  transport_.finish();
}

bool Collectives::reduces_at_once(std::size_t bytes, int ranks) { return ranks == 2 || bytes <= at_once_bytes; }

void Collectives::all_reduce(const TensorView& buffer, Reduction reduction) {
  if (reduces_at_once(buffer.bytes(), size_)) {
    all_reduce_at_once(buffer, reduction);
  } else {
    all_reduce_in_blocks(buffer, reduction);
  }
}

void Collectives::all_reduce_at_once(const TensorView& buffer, Reduction reduction) {
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = {buffer.data, buffer.bytes()};
    receives_[p] = {nullptr, buffer.bytes()};
  }
  exchange();
  void* result = scratch(buffer.bytes());  // others may still read the buffer
  reduce_arrived(buffer.dtype, reduction, buffer.data, result, buffer.elements());
  transport_.finish();
  std::memcpy(buffer.data, result, buffer.bytes());
}

// Rank p reduces block p, then all gather the blocks. The last blocks may be shorter or empty.
void Collectives::all_reduce_in_blocks(const TensorView& buffer, Reduction reduction) {
  const std::int64_t count = buffer.elements();
  const std::int64_t block = (count + size_ - 1) / size_;
  const auto part = [&](std::size_t p) {
    const std::int64_t begin = std::min(static_cast<std::int64_t>(p) * block, count);
    const TensorView view = buffer.slice(begin, std::min(block, count - begin));
    return Part{view.data, view.bytes()};
  };
  const Part own = part(static_cast<std::size_t>(rank_));
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = part(p);
    receives_[p] = {nullptr, own.bytes};
  }
  exchange();
  void* result = scratch(own.bytes);
  reduce_arrived(buffer.dtype, reduction, own.data, result,
                 static_cast<std::int64_t>(own.bytes / size_of(buffer.dtype)));
  transport_.finish();
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = {result, own.bytes};
    receives_[p] = part(p);
  }
  exchange();
  std::memcpy(own.data, result, own.bytes);
  transport_.finish();
}

void Collectives::broadcast(const TensorView& buffer, int root) {
  clear();
  const Part whole{buffer.data, buffer.bytes()};
  if (rank_ == root) {
    std::fill(sends_.begin(), sends_.end(), whole);
  } else {
    receives_[static_cast<std::size_t>(root)] = whole;
  }
  exchange();
  transport_.finish();
}

void Collectives::all_to_all(const TensorView& send, const std::vector<std::size_t>& send_bytes,
                             const TensorView& receive, const std::vector<std::size_t>& receive_bytes) {
  std::size_t from = 0, to = 0;
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = {bytes_of(send) + from, send_bytes[p]};
    receives_[p] = {bytes_of(receive) + to, receive_bytes[p]};
    from += send_bytes[p];
    to += receive_bytes[p];
  }
  exchange();
  const std::size_t own = static_cast<std::size_t>(rank_);
  if (send_bytes[own]) std::memcpy(receives_[own].data, sends_[own].data, send_bytes[own]);
  transport_.finish();
}

void Collectives::all_to_all_rows(const RowExchange& a) {
  const std::int64_t row = a.send.shape[1], ranks = size_;
  std::vector<std::int32_t> leaving(sends_.size()), arriving(sends_.size());
  for (std::int64_t p = 0; p < ranks; ++p) {
    leaving[static_cast<std::size_t>(p)] = a.send_counts.as<std::int32_t>()[p * a.send_counts.shape[1] + a.column];
  }
  const std::vector<std::size_t> each(sends_.size(), sizeof(std::int32_t));
  all_to_all(view_of(leaving.data(), {ranks}), each, view_of(arriving.data(), {ranks}), each);
  const auto to_bytes = [&](const char* what, const std::vector<std::int32_t>& counts, std::int64_t rows) {
    std::vector<std::size_t> bytes;
    std::int64_t sum = 0;
    for (const std::int32_t count : counts) {
      sum += count;
      bytes.push_back(static_cast<std::size_t>(count) * static_cast<std::size_t>(row));
    }
    ANANKE_CHECK(sum <= rows && std::all_of(counts.begin(), counts.end(), [](std::int32_t n) { return n >= 0; }),
                 "{} rows {}, where {} have room", sum, what, rows);
    return bytes;
  };
  const std::vector<std::size_t> out = to_bytes("leave", leaving, a.send.shape[0]);
  const std::vector<std::size_t> in = to_bytes("arrive", arriving, a.receive.shape[0]);
  all_to_all(a.send, out, a.receive, in);
  for (std::int64_t p = 0; p < ranks; ++p) {
    const auto index = static_cast<std::size_t>(p);
    if (a.receive_counts) {
      a.receive_counts.as<std::int32_t>()[p * a.receive_counts.shape[1] + a.column] = arriving[index];
    }
    if (a.received && p != rank_) *a.received.as<std::int64_t>() += static_cast<std::int64_t>(in[index]);
  }
}

void Collectives::sum_parts(const TensorView& parts, const TensorView& sum, bool add) {
  const std::size_t block = parts.bytes() / sends_.size(), own = static_cast<std::size_t>(rank_);
  for (std::size_t p = 0; p < sends_.size(); ++p) {
    sends_[p] = {bytes_of(parts) + p * block, block};
    receives_[p] = {nullptr, block};
  }
  exchange();
  for (std::size_t p = 0; p < terms_.size(); ++p) terms_[p] = p == own ? sends_[own].data : receives_[p].data;
  sum_bf16_in_order(terms_, sum.as<float>(), sum.elements(), add);
  transport_.finish();
}

}  // namespace ananke
