// What people are told about a node's memory. Pure.
#pragma once

#include <string>

#include "runtime/memory/room.h"

namespace ananke {

// "processes 60.0 GiB, shared memory (/dev/shm, tmpfs) 3.00 GiB, ...": what is not to be had, largest first; what is
// under a hundredth of the total is left out.
std::string held_text(const NumaRoom& room);

// What can be done about the largest part, where that would free `missing` bytes, one sentence.
std::string held_advice(const NumaRoom& room, std::uint64_t missing);

// A message to the site's support, ready to be sent: the whole breakdown of every NUMA node of the job's node. `when`:
// as utc_now() has it.
std::string ticket_text(const NodeMemory& node, const RoomOptions& options, const std::string& when);

}  // namespace ananke
