#include "plugins/backend_host/operators/embedding.h"

#include <algorithm>
#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "runtime/base/error.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 14;
constexpr std::int64_t columns_per_task = 64;

// Token ids lie on the device, so the call cannot look at them; the work must, before it follows them.
void check_ids(const char* op, const std::int32_t* ids, std::int64_t tokens, std::int64_t vocabulary) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    ANANKE_CHECK(ids[t] >= 0 && ids[t] < vocabulary, "{}: token {} at position {} of a table of {} rows", op, ids[t], t,
                 vocabulary);
  }
}

}  // namespace

void HostEmbedding::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "embedding forward";
  const auto [tokens, vocabulary, hidden] = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, a, tokens = tokens, vocabulary = vocabulary, hidden = hidden] {
    const std::int32_t* ids = a.tokens.as<std::int32_t>();
    check_ids(op, ids, tokens, vocabulary);
    if (hidden == 0) return;
    const float* table = a.table.as<float>();
    float* y = a.y.as<float>();
    pool.run_blocks(
        tokens, std::max<std::int64_t>(1, elements_per_task / hidden), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t t = begin; t < end; ++t) {
            std::memcpy(y + t * hidden, table + ids[t] * hidden, static_cast<std::size_t>(hidden) * sizeof(float));
          }
        });
  });
}

void HostEmbedding::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "embedding backward";
  const auto [tokens, vocabulary, hidden] = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, a, tokens = tokens, vocabulary = vocabulary, hidden = hidden] {
    const std::int32_t* ids = a.tokens.as<std::int32_t>();
    check_ids(op, ids, tokens, vocabulary);
    const float* dy = a.dy.as<float>();
    float* dtable = a.dtable.as<float>();
    // Threads share columns, so that every row is summed in token order whatever their number.
    pool.run_blocks(hidden, columns_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        float* to = dtable + ids[t] * hidden;
        const float* from = dy + t * hidden;
        for (std::int64_t j = begin; j < end; ++j) to[j] += from[j];
      }
    });
  });
}

}  // namespace ananke::host
