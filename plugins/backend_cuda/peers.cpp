#include "plugins/backend_cuda/peers.h"

#include <cstdint>
#include <sstream>
#include <utility>

#include "plugins/backend_cuda/device_choice.h"
#include "plugins/backend_cuda/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/exchange_table.h"

namespace ananke::cuda {
namespace {

std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace

bool same_process(const ProcessIdentity& a, const ProcessIdentity& b) {
  return !a.boot.empty() && a.boot == b.boot && a.space == b.space && a.process == b.process && a.start == b.start;
}

std::string encode(const PeerCard& card) {
  const ProcessIdentity& p = card.process;
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", p.host, p.boot, p.space, p.process, p.start, card.uuid,
                     card.nccl, to_hex(card.nccl_id));
}

PeerCard decode(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ANANKE_CHECK(lines.size() == 8, "a rank's card for a communicator has {} lines, not 8", lines.size());
  PeerCard card;
  card.process = {lines[0], lines[1], lines[2], std::atoi(lines[3].c_str()), lines[4]};
  card.uuid = lines[5];
  card.nccl = std::atoi(lines[6].c_str());
  card.nccl_id = from_hex(lines[7]);
  return card;
}

Peers::Peers(std::vector<int> ranks, int own, PeerCard card, const std::string& key, Rendezvous& rendezvous)
    : ranks_(std::move(ranks)), own_(static_cast<std::size_t>(own)), neighbours_(ranks_.size()) {
  for (const std::string& text : rendezvous.exchange(key + "/cards", ranks_, encode(card))) {
    cards_.push_back(decode(text));
  }
  std::vector<std::string> uuids, processes;
  for (std::size_t i = 0; i < cards_.size(); ++i) {
    uuids.push_back(cards_[i].uuid);
    processes.push_back(place_of(i));
  }
  refuse_shared_devices(ranks_, uuids, processes);
  refuse_mixed_libraries();
  meet_those_of_this_process(key, rendezvous);
}

void Peers::refuse_mixed_libraries() const {
  for (std::size_t i = 1; i < cards_.size(); ++i) {
    if (cards_[i].nccl == cards_[0].nccl) continue;
    fail(ErrorKind::config,
         "rank {} ({}) has NCCL {}, rank {} ({}) NCCL {}; install the same library on every node, or see that "
         "LD_LIBRARY_PATH is the same",
         ranks_[0], place_of(0), nccl_version_text(cards_[0].nccl), ranks_[i], place_of(i),
         nccl_version_text(cards_[i].nccl));
  }
}

// Addresses are good within a process. Two exchanges: nobody goes on, and perhaps leaves, before all have taken theirs.
void Peers::meet_those_of_this_process(const std::string& key, Rendezvous& rendezvous) {
  std::vector<int> here;
  for (std::size_t i = 0; i < cards_.size(); ++i) {
    if (same_process(cards_[i].process, cards_[own_].process)) here.push_back(ranks_[i]);
  }
  if (here.size() < 2) return;
  if (own_ == 0) {
    log_warning(
        "{} are threads of one process: CUDA's locks of a process may let them wait for each other without end; "
        "give each GPU a process",
        format_ranks(here));
  }
  const auto address = std::to_string(reinterpret_cast<std::uintptr_t>(&presence_));
  const std::vector<std::string> addresses = rendezvous.exchange(key + "/presence", here, address);
  for (std::size_t i = 0, next = 0; i < ranks_.size(); ++i) {
    if (next >= here.size() || ranks_[i] != here[next]) continue;
    const auto* theirs = reinterpret_cast<const std::shared_ptr<Presence>*>(std::stoull(addresses[next++]));
    if (i != own_) neighbours_[i] = *theirs;
  }
  rendezvous.exchange(key + "/met", here, "");
}

std::string Peers::place_of(std::size_t peer) const {
  return fmt::format("{}, process {}", cards_[peer].process.host, cards_[peer].process.process);
}

void Peers::leave() noexcept { presence_->left = true; }

std::string Peers::lost() const {
  for (std::size_t i = 0; i < cards_.size(); ++i) {
    if (i == own_) continue;
    if (neighbours_[i] ? neighbours_[i]->left.load() : life_of(cards_[i].process) == Life::gone) {
      return fmt::format("rank {} ({}) is gone", ranks_[i], place_of(i));
    }
  }
  return "";
}

}  // namespace ananke::cuda
