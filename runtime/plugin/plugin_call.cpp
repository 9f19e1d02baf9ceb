#include "runtime/plugin/plugin_call.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <new>

namespace ananke {
namespace {

thread_local PluginScope* innermost = nullptr;
// Apart from the scope, so that a signal handler reads one pointer to constant memory.
thread_local const char* innermost_text = nullptr;

}  // namespace

PluginError::~PluginError() = default;

CallTrail::Activity CallTrail::activity() const {
  const std::lock_guard lock(mutex_);
  const bool waits =
      std::all_of(running_.begin(), running_.end(), [](const PluginScope* scope) { return scope->waits_; });
  Activity activity{.text = {}, .waits = waits && !running_.empty()};
  for (const PluginScope* scope : running_) {
    if (scope->waits_ == waits) activity.text += (activity.text.empty() ? "" : "; ") + scope->call_->text;
  }
  return activity;
}

PluginScope::PluginScope(PluginCallPtr call) : call_(std::move(call)), outer_(innermost), outer_text_(innermost_text) {
  {
    const std::lock_guard lock(call_->trail->mutex_);
    auto& running = call_->trail->running_;
    const auto outer = std::find(running.begin(), running.end(), outer_);
    if (outer != running.end()) {
      *outer = this;
    } else {
      running.push_back(this);
    }
  }
  innermost = this;
  innermost_text = call_->text.c_str();
}

PluginScope::~PluginScope() {
  innermost = outer_;
  innermost_text = outer_text_;
  const std::lock_guard lock(call_->trail->mutex_);
  auto& running = call_->trail->running_;
  const auto own = std::find(running.begin(), running.end(), this);
  if (outer_ && outer_->call_->trail == call_->trail) {
    *own = outer_;
  } else {
    running.erase(own);
  }
}

PluginCallPtr PluginScope::current() noexcept { return innermost ? innermost->call_ : nullptr; }
const char* PluginScope::current_text() noexcept { return innermost_text; }

PluginEcho::PluginEcho(const char* text) noexcept : before_(std::exchange(innermost_text, text)) {}
PluginEcho::~PluginEcho() { innermost_text = before_; }

PluginWait::PluginWait() : scope_(innermost) {
  if (!scope_) return;
  const std::lock_guard lock(scope_->call_->trail->mutex_);
  before_ = std::exchange(scope_->waits_, true);
}

PluginWait::~PluginWait() {
  if (!scope_) return;
  const std::lock_guard lock(scope_->call_->trail->mutex_);
  scope_->waits_ = before_;
}

void rethrow_blamed(const PluginCall& call) {
  const auto blame = [&](ErrorKind kind, const char* what) { throw PluginError(kind, call.text + ": " + what); };
  try {
    throw;
  } catch (const PluginError&) {
    throw;
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::worker_failed:
      case ErrorKind::stalled:
      case ErrorKind::interrupted: throw;
      case ErrorKind::internal: blame(ErrorKind::plugin, error.what()); break;
      default: blame(error.kind(), error.what());
    }
  } catch (const std::bad_alloc&) {
    blame(ErrorKind::resource, "out of memory");
  } catch (const std::exception& error) {
    blame(ErrorKind::plugin, error.what());
  } catch (...) {
    blame(ErrorKind::plugin, "it threw something that is no std::exception");
  }
  std::abort();  // not reached: every branch throws
}

struct PluginGuard::Calls {
  std::string plugin;  // "optimizer plugin 'lion' (/x/lion.so)"
  std::shared_ptr<CallTrail> trail;
  std::mutex mutex;
  std::map<const PluginCall*, std::map<std::string, PluginCallPtr, std::less<>>> by_caller;  // and by method
};

PluginGuard::PluginGuard(const std::string& role, const std::string& plugin, const std::string& file,
                         std::shared_ptr<CallTrail> trail)
    : calls_(std::make_shared<Calls>()) {
  calls_->plugin = fmt::format("{} plugin '{}' ({})", role, plugin, file);
  calls_->trail = std::move(trail);
}

// Calls are kept, callers with them: their number is that of the ways from plugin to plugin.
PluginCallPtr PluginGuard::call_of(std::string_view method) const {
  PluginCallPtr caller = PluginScope::current();
  if (caller && caller->text.starts_with(calls_->plugin)) caller = caller->caller;  // a plugin that calls itself
  const std::lock_guard lock(calls_->mutex);
  auto& by_method = calls_->by_caller[caller.get()];
  const auto known = by_method.find(method);
  if (known != by_method.end()) return known->second;
  std::string text = fmt::format("{}, in {}", calls_->plugin, method);
  if (caller) text += ", called by " + caller->text;
  auto call = std::make_shared<const PluginCall>(PluginCall{std::move(text), calls_->trail, std::move(caller)});
  by_method.emplace(method, call);
  return call;
}

void PluginGuard::fail_of(std::string_view method, const std::string& text) const {
  throw PluginError(ErrorKind::plugin, fmt::format("{}: {}", call_of(method)->text, text));
}

}  // namespace ananke
