#include "launcher/first_cause.h"

#include <algorithm>
#include <csignal>

#include "launcher/worker_process.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds own_settle{150};         // until decided, after a cause that stands on its own
constexpr milliseconds elsewhere_settle{1500};  // after one that points at another rank

// A death shows at once, a report takes its way through a socket, and an abort is often what another's death makes
// of an unprepared thread: of two at nearly the same time the one that cannot be a consequence comes first.
milliseconds handicap(const Cause& cause) {
  if (cause.what == Cause::What::killed) return milliseconds(cause.number == SIGABRT ? 40 : 0);
  return milliseconds(20);
}

}  // namespace

bool FirstCause::points_elsewhere(const Cause& cause) {
  switch (cause.what) {
    case Cause::What::reported: return cause.kind == ErrorKind::worker_failed || cause.kind == ErrorKind::stalled;
    case Cause::What::exited:
      return cause.number == static_cast<int>(ErrorKind::worker_failed) ||
             cause.number == static_cast<int>(ErrorKind::stalled);
    case Cause::What::disconnected: return true;
    case Cause::What::no_progress: return cause.waits;
    default: return false;
  }
}

bool FirstCause::is_before(const Seen& a, const Seen& b) {
  const bool a_elsewhere = points_elsewhere(a.cause), b_elsewhere = points_elsewhere(b.cause);
  if (a_elsewhere != b_elsewhere) return b_elsewhere;
  return a.when + handicap(a.cause) < b.when + handicap(b.cause);
}

// Of ranks that stand still, the one that all the others wait for.
bool FirstCause::is_behind(const Seen& a, const Seen& b) {
  return a.cause.what == Cause::What::no_progress && points_elsewhere(a.cause) == points_elsewhere(b.cause) &&
         std::pair(a.cause.step, a.cause.place) < std::pair(b.cause.step, b.cause.place);
}

void FirstCause::add(Cause cause, Clock::time_point when) {
  auto known = std::ranges::find(seen_, cause.rank, [](const Seen& seen) { return seen.cause.rank; });
  if (known == seen_.end()) {
    seen_.push_back({std::move(cause), when});
  } else if (known->cause.what == Cause::What::disconnected) {
    known->cause = std::move(cause);
  }
}

std::optional<FirstCause::Clock::time_point> FirstCause::settled_at() const {
  std::optional<Clock::time_point> at;
  for (const Seen& seen : seen_) {
    const auto own = seen.when + (points_elsewhere(seen.cause) ? elsewhere_settle : own_settle);
    at = at ? std::min(*at, own) : own;
  }
  return at;
}

const Cause& FirstCause::result() const {
  ANANKE_CHECK(any(), "no cause");
  const auto first = std::ranges::min_element(seen_, is_before);
  if (first->cause.what != Cause::What::no_progress) return first->cause;
  const Seen* behind = &*first;
  for (const Seen& seen : seen_) behind = is_behind(seen, *behind) ? &seen : behind;
  return behind->cause;
}

std::string describe(const Cause& cause) {
  std::string who = fmt::format("rank {}", cause.rank);
  if (!cause.host.empty()) who += fmt::format(" ({}, process {})", cause.host, cause.process);
  std::string what;
  switch (cause.what) {
    case Cause::What::killed:
      what = fmt::format("was killed by signal {} ({})", cause.number, signal_name(cause.number));
      break;
    case Cause::What::exited: what = fmt::format("exited with code {} without having finished", cause.number); break;
    case Cause::What::reported: what = fmt::format("failed: {}", cause.message); break;
    case Cause::What::aborted: what = fmt::format("called PMIx_Abort({})", cause.number); break;
    case Cause::What::silent: what = "gave no sign of life for"; break;
    case Cause::What::no_progress: what = "made no progress for"; break;
    case Cause::What::not_joined: what = "did not join within"; break;
    case Cause::What::teardown: what = "had finished its work, but its process then"; break;
    case Cause::What::disconnected: what = "left the control channel, but its process goes on"; break;
    case Cause::What::lost: what = "and its Slurm step are gone"; break;
  }
  if (cause.what != Cause::What::reported && !cause.message.empty()) {
    const bool flows = what.ends_with(" for") || what.ends_with(" within") || what.ends_with(" then");
    what += (flows ? " " : ": ") + cause.message;
  }
  std::string where;
  if (!cause.phase.empty()) {
    where = fmt::format(" (phase '{}'{}{})", cause.phase, cause.step > 0 ? fmt::format(", step {}", cause.step) : "",
                        cause.item.empty() ? "" : ", " + cause.item);
  }
  if (!cause.activity.empty()) what += (cause.waits ? ", waiting in " : " inside ") + cause.activity;
  return who + " " + what + where;
}

}  // namespace ananke
