// A role of the tests' own, so that the boundary is tested without any product role.
#pragma once

#include <string>

#include "runtime/plugin/role_name.h"
#include "runtime/roles/context.h"

namespace ananke {

class EchoRole {
 public:
  virtual ~EchoRole() = default;
  virtual std::string say() const = 0;
};

class SilentRole {
 public:
  virtual ~SilentRole() = default;
};

template <>
inline constexpr const char* role_name<EchoRole> = "observer";
template <>
inline constexpr const char* role_name<SilentRole> = "optimizer";

}  // namespace ananke
