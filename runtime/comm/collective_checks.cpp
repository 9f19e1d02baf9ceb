#include "runtime/comm/collective_checks.h"

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

}  // namespace ananke
