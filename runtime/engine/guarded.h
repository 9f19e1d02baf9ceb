// What the wrappers of all roles share (guarded_roles.cpp, guarded_backend.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/collective_use.h"
#include "runtime/plugin/plugin_call.h"
#include "runtime/roles/context.h"
#include "runtime/roles/traffic.h"
#include "runtime/telemetry/trace.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

inline constexpr std::uint64_t most_plugin_bytes = std::uint64_t{1} << 44;  // of one piece of memory; more is nonsense

// Holds the role. Destroying it is a call as well; it cannot be allowed to throw, but a crash is told.
template <class Role>
class Guarded : public Role {
 public:
  Guarded(std::unique_ptr<Role> role, PluginGuard guard) : guard_(std::move(guard)), role_(std::move(role)) {}
  ~Guarded() override {
    guard_.call("its destructor", [&] { role_.reset(); });
  }

 protected:
  template <class Work>
  decltype(auto) call(std::string_view method, Work&& work) const {
    return guard_.call(method, std::forward<Work>(work));
  }
  // Of a step: a span of its trace, with the arguments that `describe` gives.
  template <class Describe, class Work>
  decltype(auto) traced(const char* method, Describe&& describe, Work&& work) const {
    const TraceSpan span(TraceKind::call, [&] {
      return TraceText{fmt::format("{}.{}", Role::role, method), std::forward<Describe>(describe)()};
    });
    return call(method, std::forward<Work>(work));
  }
  template <class Work>
  decltype(auto) traced(const char* method, Work&& work) const {
    return traced(
        method, [] { return std::vector<TraceArgument>{}; }, std::forward<Work>(work));
  }
  std::vector<PlanLine> checked(std::string_view method, std::vector<PlanLine> lines) const {
    for (const PlanLine& line : lines) {
      guard_.require(!line.purpose.empty(), method, "it plans {} bytes for ''; give every line a purpose", line.bytes);
      guard_.require(line.bytes <= most_plugin_bytes, method,
                     "it plans {} bytes for '{}', which is more than {}; it miscounts, or the job is too large for one "
                     "rank: use more, or smaller microbatches",
                     line.bytes, line.purpose, most_plugin_bytes);
    }
    return lines;
  }
  std::vector<CollectiveUse> checked(std::vector<CollectiveUse> uses) const {
    for (const CollectiveUse& use : uses) {
      guard_.require(!use.axis.empty() && use.bytes <= most_plugin_bytes, "exchanges",
                     "it exchanges {} bytes at once on axis '{}'; name the axis, and at most {} bytes make sense",
                     use.bytes, use.axis, most_plugin_bytes);
    }
    return uses;
  }
  Traffic checked(Traffic lines) const {
    for (const TrafficLine& line : lines) {
      guard_.require(!line.axis.empty(), "traffic", "a line of {} bytes names no axis", line.bytes);
    }
    return lines;
  }
  void check_flat(std::string_view method, const char* what, const TensorView& view, std::int64_t elements,
                  DType type = DType::f32) const {
    guard_.require(view.dtype == type && view.elements() == elements && (view.data || elements == 0), method,
                   "{} is {} {}{}, it must be {} with {} elements", what, name_of(view.dtype), to_string(view.shape),
                   view.data ? "" : " without memory", name_of(type), elements);
  }

  PluginGuard guard_;
  std::unique_ptr<Role> role_;
};

}  // namespace ananke
