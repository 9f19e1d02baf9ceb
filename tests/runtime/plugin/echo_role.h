// A role of the tests' own, so that the boundary is tested without any product role.
#pragma once

#include <string>

#include "runtime/roles/context.h"

namespace ananke {

class EchoRole {
 public:
  static constexpr const char* role = "observer";
  virtual ~EchoRole() = default;
  virtual std::string say() const = 0;
};

class SilentRole {
 public:
  static constexpr const char* role = "optimizer";
  virtual ~SilentRole() = default;
};

}  // namespace ananke
