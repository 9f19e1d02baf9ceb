// What the ranks of a communicator tell each other before NCCL connects them, and whether they still live.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/comm/rendezvous.h"

namespace ananke::cuda {

// Set when a rank leaves a communicator: how ranks that are threads of one process tell each other.
struct Presence {
  std::atomic<bool> left = false;
};

struct PeerCard {
  ProcessIdentity process;
  std::string uuid;     // of its device
  int nccl = 0;         // version of its library
  std::string nccl_id;  // what NCCL's first rank gives the others (ncclUniqueId's bytes); empty from all others
};
bool same_process(const ProcessIdentity& a, const ProcessIdentity& b);
std::string encode(const PeerCard& card);
PeerCard decode(const std::string& text);  // Error(internal) for what encode() did not make

class Peers {
 public:
  // All of `ranks` (world ranks) call this with the same key. Error(config) where two have one device or NCCL libraries
  // of different versions, naming both.
  Peers(std::vector<int> ranks, int own, PeerCard card, const std::string& key, Rendezvous& rendezvous);

  const std::vector<int>& ranks() const noexcept { return ranks_; }
  const std::string& nccl_id() const noexcept { return cards_[0].nccl_id; }
  void leave() noexcept;  // tells those of this process
  // "rank 3 (jwb0012, process 4711) is gone" for the first peer that has left or whose process has ended, or empty.
  // Sees the processes of this host only.
  std::string lost() const;

 private:
  void refuse_mixed_libraries() const;
  void meet_those_of_this_process(const std::string& key, Rendezvous& rendezvous);
  std::string place_of(std::size_t peer) const;

  const std::vector<int> ranks_;
  const std::size_t own_;
  std::vector<PeerCard> cards_;
  std::shared_ptr<Presence> presence_ = std::make_shared<Presence>();
  std::vector<std::shared_ptr<Presence>> neighbours_;  // by rank; null: of another process, or this rank
};

}  // namespace ananke::cuda
