// Who is to blame: the plugin call a thread is inside. Whatever goes wrong meanwhile is told with the plugin's name and
// file and the method's name: an exception gets them in front, a crash as last words, a hang through the heartbeat.
//
//   PluginGuard guard("lion", "/x/lion.so", trail);
//   guard.call("update", [&] { optimizer->update(...); });
//
// The engine wraps every role of a plugin once (engine/guarded_roles.h); nothing else needs to think of it. A backend
// hands the call on to work it runs later (PluginScope::current() where the work is queued, run_inside() where it
// runs).
#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {

// An error that already names its plugin.
class PluginError : public Error {
 public:
  using Error::Error;
  ~PluginError() override;
};

struct PluginCall;

// The plugin calls of one rank that are running now, on any thread.
class CallTrail {
 public:
  // "plugin 'lion' (/x/lion.so), in update", several separated by "; "; empty when there is none. Any thread.
  std::string text() const;

 private:
  friend class PluginScope;
  mutable std::mutex mutex_;
  std::vector<const PluginCall*> running_;
};

struct PluginCall {
  std::string text;  // "plugin 'lion' (/x/lion.so), in update"
  std::shared_ptr<CallTrail> trail;
};
using PluginCallPtr = std::shared_ptr<const PluginCall>;

// While it lives, this thread is inside the call. Scopes nest.
class PluginScope {
 public:
  explicit PluginScope(PluginCallPtr call);
  ~PluginScope();
  PluginScope(const PluginScope&) = delete;
  PluginScope& operator=(const PluginScope&) = delete;
  // The innermost of this thread, or null.
  static PluginCallPtr current() noexcept;
  // Its text for a signal handler: async-signal-safe, null when there is none.
  static const char* current_text() noexcept;

 private:
  PluginCallPtr call_;
  PluginScope* outer_;
};

// Throws the exception being handled again, as PluginError: the call in front of its text; its kind, or `plugin` where
// it is no Error of ours or an internal one. What comes from elsewhere passes as it is: another plugin's error, a lost
// peer.
[[noreturn]] void rethrow_blamed(const PluginCall& call);

template <class Work>
decltype(auto) run_inside(const PluginCallPtr& call, Work&& work) {
  const PluginScope scope(call);
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    rethrow_blamed(*call);
  }
}

// One plugin of one rank, to be called through. Thread-safe; copies share what they hold.
class PluginGuard {
 public:
  PluginGuard(const std::string& plugin, const std::string& file, std::shared_ptr<CallTrail> trail);

  template <class Work>
  decltype(auto) call(std::string_view method, Work&& work) const {
    return run_inside(call_of(method), std::forward<Work>(work));
  }
  // For what a call has returned: throws Error(plugin) naming plugin and method when it is not true.
  template <class... Args>
  void require(bool holds, std::string_view method, fmt::format_string<Args...> text, Args&&... args) const {
    if (!holds) fail_of(method, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  struct Calls;
  PluginCallPtr call_of(std::string_view method) const;
  [[noreturn]] void fail_of(std::string_view method, const std::string& text) const;
  std::shared_ptr<Calls> calls_;
};

}  // namespace ananke
