// How the bytes of one communicator move between its ranks: all that differs between ranks as threads of one process
// and ranks as processes. The collectives (host_communicator.cpp) are written on top of it once, so that results are
// the same bits with each.
//
//   exchange(sends, receives) ─ use what arrived ─ finish()      all ranks, in the same order, one thread at a time
#pragma once

#include <cstddef>
#include <span>

namespace ananke {

struct Part {
  void* data = nullptr;
  std::size_t bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // sends[p] goes to rank p of the group, receives[p] comes from it; own entries are ignored, parts of 0 bytes do not
  // travel. Where receives[p].data is null the transport chooses a place and sets it; it may be the sender's own
  // memory: read only. Blocks until all has arrived. Errors: worker_failed (a rank is gone, abort()), stalled (the
  // deadline passed), internal (both ends disagree on the size), naming world ranks.
  virtual void exchange(std::span<const Part> sends, std::span<Part> receives) = 0;
  // What arrived is no longer looked at. When it returns, what was sent may be changed.
  virtual void finish() = 0;
  // Ends this and every later call, here and on the other ranks, with an error. Any thread.
  virtual void abort() noexcept = 0;
  // This rank makes no more calls: one that is under way ends with an error, the other ranks' later ones, too, but what
  // belongs to finished calls still reaches them.
  virtual void leave() noexcept = 0;
};

}  // namespace ananke
