#include "runtime/comm/collective_checks.h"

#include <algorithm>
#include <functional>

#include "runtime/base/error.h"

namespace ananke {
namespace {

bool overlap(const TensorView& a, const TensorView& b) {
  const auto* first = static_cast<const std::byte*>(a.data);
  const auto* second = static_cast<const std::byte*>(b.data);
  const std::less<const std::byte*> before;
  return a.bytes() && b.bytes() && before(first, second + b.bytes()) && before(second, first + a.bytes());
}

}  // namespace

void CollectiveChecks::all_gather(const TensorView& send, const TensorView& receive) const {
  ANANKE_CHECK(send.dtype == receive.dtype && receive.elements() == size * send.elements(),
               "communicator {}: all_gather of {} {} into {} {}: it must be {} times as many of the same type", name,
               send.elements(), name_of(send.dtype), receive.elements(), name_of(receive.dtype), size);
  const auto* place = static_cast<const std::byte*>(receive.data) + static_cast<std::size_t>(rank) * send.bytes();
  ANANKE_CHECK(!overlap(send, receive) || send.data == place,
               "communicator {}: all_gather in place needs `send` at block {} of `receive`", name, rank);
}

void CollectiveChecks::reduce_scatter(const TensorView& send, const TensorView& receive) const {
  ANANKE_CHECK(send.dtype == DType::f32 && receive.dtype == DType::f32 && send.elements() == size * receive.elements(),
               "communicator {}: reduce_scatter of {} {} into {} {}: it takes f32 and {} times as many as it gives",
               name, send.elements(), name_of(send.dtype), receive.elements(), name_of(receive.dtype), size);
  ANANKE_CHECK(!overlap(send, receive), "communicator {}: reduce_scatter's `receive` overlaps `send`", name);
}

void CollectiveChecks::all_reduce(const TensorView& buffer) const {
  ANANKE_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::f64 || buffer.dtype == DType::i64,
               "communicator {}: all_reduce of {}; it takes f32, f64 and i64", name, name_of(buffer.dtype));
}

void CollectiveChecks::broadcast(int root) const {
  ANANKE_CHECK(root >= 0 && root < size, "communicator {}: broadcast from rank {} of {}", name, root, size);
}

void CollectiveChecks::all_to_all(const TensorView& send, std::span<const std::int64_t> send_counts,
                                  const TensorView& receive, std::span<const std::int64_t> receive_counts) const {
  const auto check = [&](const char* what, const TensorView& tensor, std::span<const std::int64_t> counts) {
    std::int64_t sum = 0;
    for (const std::int64_t count : counts) {
      ANANKE_CHECK(count >= 0, "communicator {}: all_to_all's {} has a count of {}", name, what, count);
      sum += count;
    }
    ANANKE_CHECK(static_cast<int>(counts.size()) == size && sum <= tensor.elements(),
                 "communicator {}: all_to_all's {} has {} counts with the sum {} for {} ranks and {} elements", name,
                 what, counts.size(), sum, size, tensor.elements());
  };
  check("send", send, send_counts);
  check("receive", receive, receive_counts);
  ANANKE_CHECK(send.dtype == receive.dtype && !overlap(send, receive),
               "communicator {}: all_to_all needs `send` ({}) and `receive` ({}) of one type, apart in memory", name,
               name_of(send.dtype), name_of(receive.dtype));
  ANANKE_CHECK(size > 1 || send_counts[0] == receive_counts[0],
               "communicator {}: all_to_all sends {} elements to itself and expects {}", name, send_counts[0],
               receive_counts[0]);
}

bool CollectiveChecks::is_shared(const TensorView& memory) const {
  const auto* begin = static_cast<const std::byte*>(memory.data);
  const std::less_equal<const std::byte*> before;
  return memory.bytes() == 0 || std::any_of(shared.begin(), shared.end(), [&](const TensorView& piece) {
           const auto* from = static_cast<const std::byte*>(piece.data);
           return before(from, begin) && before(begin + memory.bytes(), from + piece.bytes());
         });
}

void CollectiveChecks::all_to_all_rows(const RowExchange& a) const {
  constexpr std::int64_t whole = 16;  // bytes
  const auto rows = [](const TensorView& tensor) { return tensor.dtype == DType::u8 && tensor.shape.rank() == 2; };
  ANANKE_CHECK(
      rows(a.send) && rows(a.receive) && a.send.shape[1] == a.receive.shape[1] && a.send.shape[1] > 0 &&
          a.send.shape[1] % whole == 0,
      "communicator {}: all_to_all_rows sends {} {} and receives {} {}: it takes rows of bytes, equally long and "
      "of a multiple of {}",
      name, name_of(a.send.dtype), to_string(a.send.shape), name_of(a.receive.dtype), to_string(a.receive.shape),
      whole);
  const auto check = [&](const char* what, const TensorView& counts) {
    ANANKE_CHECK(counts.dtype == DType::i32 && counts.shape.rank() == 2 && counts.shape[0] == size && a.column >= 0 &&
                     a.column < counts.shape[1],
                 "communicator {}: all_to_all_rows's {} are {} {}, column {}; they are i32 [{}, more than that]", name,
                 what, name_of(counts.dtype), to_string(counts.shape), a.column, size);
  };
  check("send_counts", a.send_counts);
  if (a.receive_counts) check("receive_counts", a.receive_counts);
  ANANKE_CHECK(!a.received || (a.received.dtype == DType::i64 && a.received.elements() == 1),
               "communicator {}: all_to_all_rows adds to {} {}, it takes one i64", name, name_of(a.received.dtype),
               to_string(a.received.shape));
  ANANKE_CHECK(
      is_shared(a.receive) && !overlap(a.send, a.receive),
      "communicator {}: all_to_all_rows receives {} bytes in memory that was not shared, or that it sends from", name,
      a.receive.bytes());
}

void CollectiveChecks::sum_parts(const TensorView& parts, const TensorView& sum) const {
  ANANKE_CHECK(
      parts.dtype == DType::bf16 && sum.dtype == DType::f32 && parts.shape.rank() == 2 && parts.shape[0] == size &&
          parts.shape[1] == sum.elements() && is_shared(parts) && !overlap(parts, sum),
      "communicator {}: sum_parts of {} {} to {} {}: it takes bf16 [{}, n] in shared memory and f32 [n] apart from it",
      name, name_of(parts.dtype), to_string(parts.shape), name_of(sum.dtype), to_string(sum.shape), size);
}

}  // namespace ananke
