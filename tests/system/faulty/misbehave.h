// What a plugin can do wrong anywhere.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/device/stream.h"
#include "runtime/roles/context.h"

namespace ananke {

[[gnu::noinline]] inline void dereference_nothing() {
  volatile int* volatile nothing = nullptr;
  *nothing = 1;
}

[[gnu::noinline]] inline int overflow_stack(volatile const char* before, int depth) {
  volatile char room[4096];
  room[0] = *before;
  if (depth < 0) return 0;
  return overflow_stack(room, depth + 1) + room[0];
}

inline void misbehave(const std::string& how) {
  if (how == "throw") throw std::runtime_error("a word of its own");
  if (how == "error") fail(ErrorKind::data, "a word of its own");
  if (how == "int") throw 7;
  if (how == "peer_lost") fail(ErrorKind::worker_failed, "rank 3 is gone");
  if (how == "segv") dereference_nothing();
  if (how == "abort") std::abort();
  if (how == "overflow") overflow_stack("", 0);
  if (how == "exit") std::exit(3);
  while (how == "hang") pause();
}

class Trouble {
 public:
  template <class Config>
  Trouble(const RoleContext& context, const Config& config)
      : at_(config.rank() < 0 || config.rank() == context.rank ? config.at() : ""),
        fault_(config.fault()),
        on_stream_(config.on_stream()),
        spared_(config.after()) {
    enter("constructor");
  }
  void enter(std::string_view method) const {
    if (at_ == method && !on_stream_ && is_due()) misbehave(fault_);
  }
  void enter(std::string_view method, Stream& stream) const {
    enter(method);
    if (at_ == method && on_stream_ && is_due()) stream.run_on_host([how = fault_] { misbehave(how); });
  }
  bool is(std::string_view method, std::string_view fault) const { return at_ == method && fault_ == fault; }

 private:
  bool is_due() const { return spared_ == 0 || --spared_ == 0; }

  std::string at_, fault_;
  bool on_stream_;
  mutable int spared_;  // calls until it goes wrong
};

}  // namespace ananke
