#include "plugins/backend_cuda/peer_exchange.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>

#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

std::string settings_of(const PeerExchange::Setup& setup) {
  return fmt::format("exchange_blocks {}, sum_blocks {}", setup.row_blocks, setup.sum_blocks);
}

template <class T>
T* data(const TensorView& view) {
  return view ? static_cast<T*>(view.data) : nullptr;
}

void check_alignment(const char* call, std::initializer_list<TensorView> tensors) {
  for (const TensorView& tensor : tensors) {
    ANANKE_CHECK(reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0,
                 "{} of a tensor at {}; on GPUs its tensors lie at multiples of 16 bytes", call, tensor.data);
  }
}

// Column `column` of i32 [ranks, n].
int* column_of(const TensorView& counts, std::int64_t column) { return counts ? data<int>(counts) + column : nullptr; }

}  // namespace

PeerExchange::PeerExchange(Setup setup, CudaDevice& device)
    : setup_(setup),
      device_(device),
      board_(device.memory().allocate(device_bytes, purpose)),
      stopped_(device.host_memory().allocate(host_bytes, std::string(purpose) + " (host)")),
      faults_(device.memory(), device.host_memory()),
      memory_(setup.rank, setup.size, device, settings_of(setup)) {
  ANANKE_CHECK(setup.row_blocks >= 1 && setup.row_blocks <= most_peer_blocks && setup.sum_blocks >= 1 &&
                   setup.sum_blocks <= most_peer_blocks,
               "{}: from 1 to {}", settings_of(setup), most_peer_blocks);
  device_.failure()->look_by(this, [this] { faults_.check(); });
}

PeerExchange::~PeerExchange() { device_.failure()->look_by(this, nullptr); }

std::string PeerExchange::share(const TensorView& memory, const TellAll& tell) {
  if (setup_.size > most_peers) return fmt::format("{} ranks, more than {}", setup_.size, most_peers);
  if (!board_shared_) {
    const auto bytes = static_cast<std::int64_t>(device_bytes);
    if (std::string reason = memory_.add(board_.view(DType::u8, {bytes}), tell); !reason.empty()) return reason;
    board_shared_ = true;
  }
  ANANKE_CHECK(memory_.pieces().size() <= most_peer_pieces, "more than {} pieces of memory are shared",
               most_peer_pieces);
  return memory_.add(memory, tell);
}

PeerExchange::Place PeerExchange::place_of(const TensorView& memory) const {
  const auto* begin = static_cast<const std::byte*>(memory.data);
  const std::less_equal<const std::byte*> before;
  for (std::size_t i = 1; i < memory_.pieces().size(); ++i) {
    const TensorView& piece = memory_.pieces()[i].own;
    const auto* from = static_cast<const std::byte*>(piece.data);
    if (before(from, begin) && before(begin + memory.bytes(), from + piece.bytes())) {
      return {static_cast<int>(i) - 1, begin - from};
    }
  }
  ANANKE_CHECK(memory.bytes() == 0, "{} bytes at {} were not shared", memory.bytes(), memory.data);
  return {0, 0};
}

PeerCall PeerExchange::next_call() {
  faults_.check();
  ANANKE_CHECK(memory_.pieces().size() > 1, "an exchange between GPUs that share no memory");
  PeerCall call{setup_.rank,   setup_.size, ++calls_, {}, {}, data<const int>(stopped_.view(DType::i32, {1})),
                faults_.sink()};
  for (std::size_t p = 0; p < static_cast<std::size_t>(setup_.size); ++p) {
    call.boards[p] = reinterpret_cast<PeerBoard*>(memory_.pieces()[0].at[p]);
    for (std::size_t i = 1; i < memory_.pieces().size(); ++i) call.pieces[i - 1][p] = memory_.pieces()[i].at[p];
  }
  return call;
}

void PeerExchange::all_to_all_rows(cudaStream_t stream, const RowExchange& a) {
  check_alignment("all_to_all_rows", {a.send, a.receive});
  const Place place = place_of(a.receive);
  const PeerRows rows{.send = data<const std::byte>(a.send),
                      .receive = data<std::byte>(a.receive),
                      .row = a.send.shape[1],
                      .send_rows = a.send.shape[0],
                      .receive_rows = a.receive.shape[0],
                      .send_counts = column_of(a.send_counts, a.column),
                      .send_columns = a.send_counts.shape[1],
                      .receive_counts = column_of(a.receive_counts, a.column),
                      .receive_columns = a.receive_counts ? a.receive_counts.shape[1] : 0,
                      .received = data<long long>(a.received),
                      .piece = place.piece,
                      .place = place.offset};
  exchange_rows(next_call(), rows, setup_.row_blocks, stream);
}

void PeerExchange::sum_parts(cudaStream_t stream, const TensorView& parts, const TensorView& sum, bool add) {
  check_alignment("sum_parts", {parts, sum});
  const Place place = place_of(parts);
  const PeerSum what{data<const std::byte>(parts), data<float>(sum), sum.elements(), add, place.piece, place.offset};
  cuda::sum_parts(next_call(), what, setup_.sum_blocks, stream);
}

void PeerExchange::stop() noexcept { std::atomic_ref<int>(*static_cast<int*>(stopped_.data())).store(1); }

}  // namespace ananke::cuda
