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

std::string CallTrail::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const PluginCall* call : running_) text += (text.empty() ? "" : "; ") + call->text;
  return text;
}

PluginScope::PluginScope(PluginCallPtr call) : call_(std::move(call)), outer_(innermost) {
  {
    const std::lock_guard lock(call_->trail->mutex_);
    call_->trail->running_.push_back(call_.get());
  }
  innermost = this;
  innermost_text = call_->text.c_str();
}

PluginScope::~PluginScope() {
  innermost = outer_;
  innermost_text = outer_ ? outer_->call_->text.c_str() : nullptr;
  const std::lock_guard lock(call_->trail->mutex_);
  auto& running = call_->trail->running_;
  running.erase(std::find(running.begin(), running.end(), call_.get()));
}

PluginCallPtr PluginScope::current() noexcept { return innermost ? innermost->call_ : nullptr; }
const char* PluginScope::current_text() noexcept { return innermost_text; }

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
  std::string plugin, file;
  std::shared_ptr<CallTrail> trail;
  std::mutex mutex;
  std::map<std::string, PluginCallPtr, std::less<>> by_method;
};

PluginGuard::PluginGuard(const std::string& plugin, const std::string& file, std::shared_ptr<CallTrail> trail)
    : calls_(std::make_shared<Calls>()) {
  calls_->plugin = plugin;
  calls_->file = file;
  calls_->trail = std::move(trail);
}

PluginCallPtr PluginGuard::call_of(std::string_view method) const {
  const std::lock_guard lock(calls_->mutex);
  const auto known = calls_->by_method.find(method);
  if (known != calls_->by_method.end()) return known->second;
  auto call = std::make_shared<const PluginCall>(
      PluginCall{fmt::format("plugin '{}' ({}), in {}", calls_->plugin, calls_->file, method), calls_->trail});
  calls_->by_method.emplace(method, call);
  return call;
}

void PluginGuard::fail_of(std::string_view method, const std::string& text) const {
  throw PluginError(ErrorKind::plugin, fmt::format("{}: {}", call_of(method)->text, text));
}

}  // namespace ananke
