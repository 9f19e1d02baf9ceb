// Ranks that exchange between the memories of GPUs without NCCL, so that several may share one GPU: what a test of the
// kernels and one of two processes do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "plugins/backend_cuda/peer_exchange.h"
#include "tests/plugins/backend_cuda/gpu.h"

namespace ananke::testing {

struct PeerRank {
  PeerRank(int number, int ranks, Rendezvous& all, cuda::CudaDevice& gpu, cuda::PeerExchange::Setup setup = {})
      : rank(number), size(ranks), rendezvous(all), device(gpu), exchange(with_ranks(setup, number, ranks), gpu) {}

  std::string share(const TensorView& memory) {
    return exchange.share(memory, [this](const std::string& own) {
      return rendezvous.exchange("peers/" + std::to_string(told++), {}, own);
    });
  }
  // Nobody goes on before all are here: no rank reserves memory while another's kernel waits for it.
  void meet() { rendezvous.exchange("peers/" + std::to_string(told++), {}, ""); }
  Stream& stream() { return device.stream(Resource::nvlink); }

  static cuda::PeerExchange::Setup with_ranks(cuda::PeerExchange::Setup setup, int rank, int size) {
    setup.rank = rank;
    setup.size = size;
    return setup;
  }
  const int rank, size;
  Rendezvous& rendezvous;
  cuda::CudaDevice& device;
  cuda::PeerExchange exchange;
  int told = 0;
};

// Rows of `row` bytes between all ranks in several rounds, counts in column 1 of 3, what they bring checked.
struct RowRounds {
  std::int64_t row = 48, most = 200;  // bytes; rows between two ranks
  int rounds = 6;
  std::int64_t count(std::int64_t round, std::int64_t from, std::int64_t to) const {
    return round == 0 ? 0 : (from * 5 + to * 3 + 1) * round * 37 % (most + 1);
  }
  static std::uint8_t byte(std::int64_t from, std::int64_t to, std::int64_t at, std::int64_t round) {
    return static_cast<std::uint8_t>((from * 53 + to * 29 + at * 7 + round * 3) % 251);
  }
  void run(PeerRank& me) const;
};

inline void RowRounds::run(PeerRank& me) const {
  constexpr std::int64_t columns = 3, column = 1;
  const std::int64_t ranks = me.size, capacity = most * ranks + 3, before = 64;
  OnDevice<std::uint8_t> memory(me.device, before + capacity * row), send(me.device, capacity * row);
  OnDevice<std::int32_t> out(me.device, ranks * columns), in(me.device, ranks * columns);
  const Buffer received = me.device.host_memory().allocate(sizeof(std::int64_t), "test (host)");
  const TensorView landing = memory.view().slice(before, capacity * row).reshaped({capacity, row});
  const Shape shape{ranks, columns};
  if (const std::string reason = me.share(memory.view()); !reason.empty()) fail(ErrorKind::internal, "{}", reason);
  std::int64_t wanted_bytes = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    std::vector<std::uint8_t> sent, wanted(static_cast<std::size_t>(before), 0xee);
    std::vector<std::int32_t> leaving(static_cast<std::size_t>(ranks * columns), 77), arriving(leaving);
    for (std::int64_t p = 0; p < ranks; ++p) {
      const auto place = static_cast<std::size_t>(p * columns + column);
      leaving[place] = static_cast<std::int32_t>(count(round, me.rank, p));
      arriving[place] = static_cast<std::int32_t>(count(round, p, me.rank));
      for (std::int64_t i = 0; i < leaving[place] * row; ++i) sent.push_back(byte(me.rank, p, i, round));
      for (std::int64_t i = 0; i < arriving[place] * row; ++i) wanted.push_back(byte(p, me.rank, i, round));
      if (p != me.rank) wanted_bytes += arriving[place] * row;
    }
    sent.resize(static_cast<std::size_t>(send.count), 0x11);
    wanted.resize(static_cast<std::size_t>(memory.count), 0xee);
    send.write(sent);
    out.write(leaving);
    in.write(std::vector<std::int32_t>(leaving.size(), 77));
    memory.write(std::vector<std::uint8_t>(wanted.size(), 0xee));
    me.meet();
    me.exchange.all_to_all_rows(cuda::raw(me.stream()),
                                {send.view().reshaped({capacity, row}), out.view().reshaped(shape), landing,
                                 in.view().reshaped(shape), column, TensorView{received.data(), DType::i64, Shape{1}}});
    me.stream().synchronize();
    const std::vector<std::uint8_t> got = memory.read();
    std::size_t wrong = 0;
    while (wrong < got.size() && got[wrong] == wanted[wrong]) ++wrong;
    if (wrong < got.size()) {
      fail(ErrorKind::numeric, "round {}, rows of {} bytes: byte {} is {}, not {}", round, row, wrong, got[wrong],
           wanted[wrong]);
    }
    if (in.read() != arriving) fail(ErrorKind::numeric, "round {}: other counts came", round);
    const std::int64_t bytes = *static_cast<const std::int64_t*>(received.data());
    if (bytes != wanted_bytes)
      fail(ErrorKind::numeric, "round {}: {} bytes counted, not {}", round, bytes, wanted_bytes);
    me.meet();
  }
}

// Exact in bf16; sums of them are rounded in f32, so that their order shows.
inline float part_term(std::int64_t rank, std::int64_t i) {
  return std::ldexp(static_cast<float>(1 + (rank * 37 + i * 11) % 127), static_cast<int>((rank * 13 + i) % 30));
}

inline void sum_rounds(PeerRank& me, const std::vector<std::int64_t>& counts) {
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  OnDevice<std::uint8_t> memory(me.device, 2 * me.size * most + 32);
  OnDevice<float> sum(me.device, most);
  if (const std::string reason = me.share(memory.view()); !reason.empty()) fail(ErrorKind::internal, "{}", reason);
  for (const std::int64_t n : counts) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(memory.count));
    for (std::int64_t i = 0; i < me.size * n; ++i) {
      const float value = part_term(me.rank, i);
      std::memcpy(bytes.data() + 32 + 2 * i, reinterpret_cast<const char*>(&value) + 2, 2);
    }
    memory.write(bytes);
    sum.write(std::vector<float>(static_cast<std::size_t>(most), 3.0F));
    std::vector<float> wanted(static_cast<std::size_t>(most), 3.0F);
    const TensorView parts{memory.view().slice(32, 2 * me.size * n).data, DType::bf16, Shape{me.size, n}};
    me.meet();
    for (const bool add : {false, true}) {
      me.exchange.sum_parts(cuda::raw(me.stream()), parts, sum.view().slice(0, n), add);
      for (std::int64_t i = 0; i < n; ++i) {
        float total = 0;
        for (int p = 0; p < me.size; ++p) total += part_term(p, me.rank * n + i);
        float& out = wanted[static_cast<std::size_t>(i)];
        out = add ? out + total : total;
      }
    }
    me.stream().synchronize();
    if (sum.read() != wanted) fail(ErrorKind::numeric, "sums of {} have other bits", n);
    me.meet();
  }
}

}  // namespace ananke::testing
