#include "runtime/comm/communicator.h"

#include "runtime/base/error.h"

namespace ananke {

void Communicator::all_to_all_rows(Stream&, const RowExchange&) {
  fail(ErrorKind::internal, "all_to_all_rows over a communicator that shares no memory");
}

void Communicator::sum_parts(Stream&, const TensorView&, const TensorView&, bool) {
  fail(ErrorKind::internal, "sum_parts over a communicator that shares no memory");
}

}  // namespace ananke
