// Which process one is, so that a later one, perhaps on another machine, can tell whether it still lives.
#pragma once

#include <cstdint>
#include <string>

namespace ananke {

std::string host_name();

// A process number means one process only within one boot of one machine, one space of process numbers (a container has
// its own) and until the number is given again.
struct ProcessIdentity {
  std::string host;
  std::string boot;   // the kernel's random number of this boot
  std::string space;  // of process numbers, as "pid:[4026531836]"
  int process = 0;
  std::string start;  // when it began, in the kernel's count
};
ProcessIdentity this_process();

enum class Life {
  alive,
  gone,
  unknown,  // of another machine, boot or container, or hidden from this user
};
Life life_of(const ProcessIdentity& identity);

// "running", "stopped (...)", ... for messages about a process of this machine.
std::string state_of(int process);

// This process's anonymous memory, as the kernel counts it (RssAnon); 0 where it does not say.
std::uint64_t anonymous_memory();

}  // namespace ananke
