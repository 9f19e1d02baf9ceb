// The one exception type of the product, and the exit codes that users and batch scripts see.
//
// Every message names the object, the action, the numbers and what to do. Throw with fail():
//   fail(ErrorKind::config, "{}: rows_per_step {} is not a multiple of {} ranks; set it to {}", ...);
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ananke {

// The value is the process's exit code. README's table lists them; scripts rely on them: never renumber.
enum class ErrorKind : int {
  internal = 1,         // a bug of ours: an invariant did not hold
  usage = 2,            // wrong command line
  config = 3,           // the job, site or mesh cannot be what is meant; nothing was started
  plugin = 4,           // a plugin was refused or failed
  data = 5,             // token store, text, safetensors, Hugging Face folder or run folder unusable
  checkpoint = 6,       // no checkpoint usable, or one could not be written
  numeric = 7,          // non-finite loss or gradient, or a parity check past its tolerance
  resource = 8,         // memory, disk, CPUs: what is needed is not there
  worker_failed = 9,    // a worker exited, was killed or aborted: the first cause is printed
  stalled = 10,         // a worker stopped answering or a wait passed its deadline
  interrupted = 11,     // stopped on request after a checkpoint; run again with --resume
};

// Name as printed and as found in README ("config", "worker_failed", ...). Unknown values give "unknown".
const char* name_of(ErrorKind kind) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);
  ~Error() override;  // key function: one typeinfo, in libananke, so that a plugin's throw is caught by the host
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

// For programmer errors only, never for user input; active in every build since a wrong gradient costs more than a compare.
#define ANANKE_CHECK(condition, ...)                                                                              \
  do {                                                                                                            \
    if (!(condition)) ::ananke::detail::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);
}

}  // namespace ananke
