#include "plugins/backend_cuda/operators/faults.h"

#include <atomic>
#include <string>

#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

const char* text_of(Fault fault) {
  switch (fault) {
    case Fault::none: break;
    case Fault::embedding_token: return "embedding: token {0} at position {1} of a table of {2} rows";
    case Fault::segment_ends: return "attention: segments cover [{0}, {1}) of {2} tokens";
    case Fault::segment_length: return "attention: segment {0} is [{1}, {2}), but segments have 1 to {3} tokens";
    case Fault::position: return "attention: position {0} of token {1}, but {2} are cached";
    case Fault::replayed_expert: return "router: replayed expert {0} of {1} for token {2}";
    case Fault::permuted_expert: return "permute: expert {0} of {1} in slot {2}";
    case Fault::target: return "head_loss: target {0} of a vocabulary of {1} at token {2}";
    case Fault::planned_expert: return "exchange plan: expert {0} of {1} in choice {2} of token {3}";
    case Fault::planned_expert_twice: return "exchange plan: token {0} chooses expert {1} twice";
    case Fault::copy_place: return "exchange: copy {0} in a wire of {1} rows";
    case Fault::arrived_copies: return "exchange expand: {0} copies arrive in buffers for {1}";
    case Fault::expanded_rows: return "exchange expand: {0} rows in a buffer for {1}";
    case Fault::count_of_copies: return "exchange: {0} copies in buffers for {1}";
    case Fault::wire_piece:
      return "quantise or dequantise: piece {0} of {1} elements of a matrix of {2} columns does not lie in {3} values "
             "and {4} bytes";
    case Fault::rows_leave: return "all_to_all_rows: {0} rows up to those for rank {2}, but {1} lie there to be sent";
    case Fault::rows_arrive: return "all_to_all_rows: {0} rows arrive at rank {2}, which has room for {1}";
    case Fault::peer_call:
      return "all_to_all_rows or sum_parts: rank {0} makes a call for rows of {1} bytes, rank {2} for {3} at the same "
             "time (negative: a sum's parts)";
    case Fault::group_rows: return "grouped_mlp: group {0} has rows [{1}, {2}) of {3}";
  }
  return "a kernel met values that it does not take";
}

FaultRecord& record_in(const Buffer& buffer) { return *static_cast<FaultRecord*>(buffer.data()); }

}  // namespace

Faults::Faults(Arena& memory, Arena& pinned)
    : taken_(memory.allocate(sizeof(int), "operators: faults")),
      record_(pinned.allocate(sizeof(FaultRecord), "operators: faults")) {}

FaultSink Faults::sink() const noexcept { return {static_cast<int*>(taken_.data()), &record_in(record_)}; }

bool Faults::any() const noexcept { return std::atomic_ref<int>(record_in(record_).fault).load() != 0; }

void Faults::check() const {
  if (!any()) return;
  const FaultRecord& record = record_in(record_);
  const auto& v = record.values;
  throw Error(ErrorKind::internal,
              fmt::format(fmt::runtime(text_of(static_cast<Fault>(record.fault))), v[0], v[1], v[2], v[3], v[4]));
}

}  // namespace ananke::cuda
