#include "plugins/backend_cuda/peer_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <sstream>
#include <utility>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/device_choice.h"
#include "plugins/backend_cuda/peers.h"
#include "runtime/base/error.h"
#include "runtime/base/process.h"

namespace ananke::cuda {
namespace {

// Why two ranks do not reach each other's memory.
class OutOfReach : public std::exception {
 public:
  explicit OutOfReach(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

// A refusal of CUDA is a reason here, and is not seen again by later calls.
void expect(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  throw OutOfReach(fmt::format("cannot {}: {}", what, cudaGetErrorString(result)));
}

std::string to_hex(const char* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  return text;
}

cudaIpcMemHandle_t handle_of(const std::string& hex) {
  cudaIpcMemHandle_t handle{};
  ANANKE_CHECK(hex.size() == 2 * sizeof handle, "a handle of device memory of {} digits", hex.size());
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    reinterpret_cast<char*>(&handle)[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

}  // namespace

// What a rank tells of a piece.
struct PeerMemory::Card {
  ProcessIdentity process;
  std::string uuid;  // of its device
  int ordinal = 0;   // of that within its process
  std::string agreed;
  std::string handle;     // of the block, hexadecimal; empty: CUDA gave none
  std::size_t begin = 0;  // of the piece within the block
  std::uintptr_t address = 0;

  std::string text() const {
    const ProcessIdentity& p = process;
    return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", p.host, p.boot, p.space, p.process, p.start,
                       uuid, ordinal, agreed, handle, begin, address);
  }
  static Card of(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    ANANKE_CHECK(lines.size() == 11, "a rank's card of its memory has {} lines, not 11", lines.size());
    return {{lines[0], lines[1], lines[2], std::atoi(lines[3].c_str()), lines[4]},
            lines[5],
            std::atoi(lines[6].c_str()),
            lines[7],
            lines[8],
            std::stoull(lines[9]),
            static_cast<std::uintptr_t>(std::stoull(lines[10]))};
  }
};

PeerMemory::PeerMemory(int rank, int size, CudaDevice& device, std::string agreed)
    : rank_(rank), size_(size), device_(device), agreed_(std::move(agreed)) {}

PeerMemory::~PeerMemory() {
  cudaSetDevice(device_.facts().device);
  for (const auto& [handle, block] : opened_) cudaIpcCloseMemHandle(block);
}

std::string PeerMemory::add(const TensorView& own, const TellAll& tell) {
  use_device(device_.facts().device);
  const BlockMemory::Block block = device_.block_of(own.data);
  ANANKE_CHECK(block.begin, "memory at {} is not of the device's arena, so it cannot be shared", own.data);
  const auto* begin = static_cast<const std::byte*>(own.data);
  Card mine{this_process(),
            device_.uuid(),
            device_.facts().device,
            agreed_,
            "",
            static_cast<std::size_t>(begin - block.begin),
            reinterpret_cast<std::uintptr_t>(own.data)};
  cudaIpcMemHandle_t handle{};
  if (cudaIpcGetMemHandle(&handle, block.begin) == cudaSuccess) {
    mine.handle = to_hex(reinterpret_cast<const char*>(&handle), sizeof handle);
  } else {
    cudaGetLastError();
  }
  const std::vector<std::string> texts = tell(mine.text());
  Piece piece{own, std::vector<std::byte*>(static_cast<std::size_t>(size_))};
  std::string reason;
  for (int p = 0; p < size_; ++p) {
    const auto index = static_cast<std::size_t>(p);
    const Card card = Card::of(texts[index]);
    if (card.agreed != agreed_) {
      fail(ErrorKind::config,
           "ranks of one communicator differ: rank {} of it has {}, rank {} {}; give all of them the "
           "same configuration",
           rank_, agreed_, p, card.agreed);
    }
    try {
      piece.at[index] = p == rank_ ? static_cast<std::byte*>(own.data) : map(card, mine);
    } catch (const OutOfReach& why) {
      reason = fmt::format("rank {} of it does not reach the memory of rank {}: {}", rank_, p, why.what());
      break;
    }
  }
  for (const std::string& of : tell(reason)) {
    if (!of.empty()) return of;
  }
  pieces_.push_back(std::move(piece));
  return "";
}

// Where this process sees the piece; throws OutOfReach.
std::byte* PeerMemory::map(const Card& card, const Card& mine) {
  if (card.process.boot.empty() || card.process.boot != mine.process.boot) {
    throw OutOfReach(fmt::format("it is on another node, {}", card.process.host));
  }
  const bool threads = same_process(card.process, mine.process);
  int ordinal = -1;  // of its device within this process, which may not see it
  const std::vector<VisibleDevice> visible = visible_devices();
  for (std::size_t i = 0; i < visible.size(); ++i) {
    if (visible[i].uuid == card.uuid) ordinal = static_cast<int>(i);
  }
  if (ordinal >= 0 && card.uuid != mine.uuid) {
    int can = 0;
    expect(cudaDeviceCanAccessPeer(&can, mine.ordinal, ordinal), "ask which GPUs reach each other");
    if (!can) throw OutOfReach(fmt::format("there is no peer access from {} to {}", mine.uuid, card.uuid));
  }
  if (!threads) return open(card) + card.begin;
  if (card.uuid != mine.uuid) {
    const cudaError_t result = cudaDeviceEnablePeerAccess(card.ordinal, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      expect(result, "reach the memory of " + card.uuid);
    }
  }
  return reinterpret_cast<std::byte*>(card.address);
}

// The block, which several pieces may lie in.
std::byte* PeerMemory::open(const Card& card) {
  if (card.handle.empty()) throw OutOfReach("CUDA gave it no handle of its memory");
  const auto known = opened_.find(card.handle);
  if (known != opened_.end()) return known->second;
  void* block = nullptr;
  expect(cudaIpcOpenMemHandle(&block, handle_of(card.handle), cudaIpcMemLazyEnablePeerAccess),
         fmt::format("open its memory (process {} on {})", card.process.process, card.uuid));
  return opened_.emplace(card.handle, static_cast<std::byte*>(block)).first->second;
}

}  // namespace ananke::cuda
