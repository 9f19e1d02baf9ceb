// Who is to blame: the plugin call a thread is inside. Whatever goes wrong meanwhile is told with the plugin's role,
// name and file and the method's name: an exception gets them in front, a crash as last words, a hang through the
// heartbeat.
//
//   PluginGuard guard("optimizer", "lion", "/x/lion.so", trail);
//   guard.call("update", [&] { optimizer->update(...); });
//
// The engine wraps every role of a plugin once (engine/guarded_roles.h), and of a backend its operators, device and
// communicators; nothing else needs to think of it. A backend hands the call on to work that it runs later
// (PluginScope::current() where the work is queued, run_inside() where it runs), tells helping threads whom they work
// for (PluginEcho), and says where it merely waits for others (PluginWait).
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

class PluginScope;

// The plugin calls of one rank that are running now, on any thread.
class CallTrail {
 public:
  struct Activity {
    std::string text;    // "optimizer plugin 'lion' (/x/lion.so), in update", several separated by "; "; may be empty
    bool waits = false;  // nothing but waiting for others: those calls are listed only where there are no others
  };
  Activity activity() const;  // any thread

 private:
  friend class PluginScope;
  friend class PluginWait;
  mutable std::mutex mutex_;
  std::vector<const PluginScope*> running_;  // the innermost of each thread
};

struct PluginCall;
using PluginCallPtr = std::shared_ptr<const PluginCall>;

struct PluginCall {
  // "optimizer plugin 'lion' (/x/lion.so), in update"; with ", called by ..." where another plugin made the call.
  std::string text;
  std::shared_ptr<CallTrail> trail;
  PluginCallPtr caller = nullptr;  // another plugin's call that this one was made in; null: the runtime's
};

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
  friend class CallTrail;
  friend class PluginWait;
  PluginCallPtr call_;
  PluginScope* outer_;
  const char* outer_text_;
  bool waits_ = false;  // under the trail's mutex
};

// While it lives, this thread does a part of the work of a call that another thread is inside of and waits for: a crash
// names it. `text` is PluginScope::current_text() there, may be null. Costs nothing.
class PluginEcho {
 public:
  explicit PluginEcho(const char* text) noexcept;
  ~PluginEcho();
  PluginEcho(const PluginEcho&) = delete;
  PluginEcho& operator=(const PluginEcho&) = delete;

 private:
  const char* before_;
};

// While it lives, what this thread is inside of only waits, for a peer or another stream: of several ranks or threads
// that stand still the one that does not merely wait is to blame.
class PluginWait {
 public:
  PluginWait();
  ~PluginWait();
  PluginWait(const PluginWait&) = delete;
  PluginWait& operator=(const PluginWait&) = delete;

 private:
  PluginScope* scope_;  // null: this thread is inside no plugin
  bool before_ = false;
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
  PluginGuard(const std::string& role, const std::string& plugin, const std::string& file,
              std::shared_ptr<CallTrail> trail);

  template <class Work>
  decltype(auto) call(std::string_view method, Work&& work) const {
    return run_inside(call_of(method), std::forward<Work>(work));
  }
  // For a PluginScope where exceptions are told in another way.
  PluginCallPtr call_of(std::string_view method) const;
  // For what a call has returned: throws Error(plugin) naming plugin and method when it is not true.
  template <class... Args>
  void require(bool holds, std::string_view method, fmt::format_string<Args...> text, Args&&... args) const {
    if (!holds) fail_of(method, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  struct Calls;
  [[noreturn]] void fail_of(std::string_view method, const std::string& text) const;
  std::shared_ptr<Calls> calls_;
};

}  // namespace ananke
