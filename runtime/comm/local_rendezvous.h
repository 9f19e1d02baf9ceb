// Rendezvous for ranks that are threads of one process:
//
//   auto world = LocalWorld::create(4, std::chrono::seconds(10));
//   std::unique_ptr<Rendezvous> mine = world->join(rank);   // one handle per rank, usable from any thread
#pragma once

#include <chrono>
#include <memory>

#include "runtime/comm/rendezvous.h"

namespace ananke {

class LocalWorld : public std::enable_shared_from_this<LocalWorld> {
 public:
  // `deadline` bounds every exchange, counted from the first rank's arrival.
  static std::shared_ptr<LocalWorld> create(int size, std::chrono::milliseconds deadline);
  virtual ~LocalWorld() = default;

  // The handle keeps the world alive. A rank joins once: Error(internal) otherwise.
  virtual std::unique_ptr<Rendezvous> join(int rank) = 0;
  // Every exchange under way or to come throws Error(worker_failed) with this message: what one rank calls when it
  // fails, so that the others do not wait for their deadline.
  virtual void abandon(const std::string& message) = 0;
};

}  // namespace ananke
