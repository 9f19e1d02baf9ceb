// The host backend with operators and collectives that take a given time, by one of two clocks:
//   sleeping  operators sleep on their stream, collectives sleep in the host communicator (communication_delay)
//   exact     nothing sleeps: every stream counts its own time, events and collectives carry it on, and the host's
//   waits
//             take it over. The order of work alone decides, to the last digit, whatever the machine is busy with.
// Ranks are threads of one process.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/roles/backend.h"

namespace ananke::testing {

enum class ClockKind { sleeping, exact };

// Seconds that operators take beside what they compute.
struct OperatorTimes {
  double attention = 0, mlp = 0;  // forward; backward twice that
  double head = 0;                // forward and backward together
  double newton_schulz = 0;
};

// Where collectives of the exact clock meet: the latest of the ranks' times at each, by group and number. All ranks'.
class MeetingTimes {
 public:
  void come(const std::string& meeting, double time);
  double latest(const std::string& meeting);

 private:
  std::mutex mutex_;
  std::map<std::string, double> latest_;
};

struct TimedSetup {
  ClockKind clock = ClockKind::sleeping;
  OperatorTimes operators = {};
  int network = 0, nvlink = 0;       // milliseconds, of every collective of the axes that belong to that stream
  MeetingTimes* meetings = nullptr;  // exact: the same on all ranks, outlives them
  // Called before collective number `count` (from 0) of the rank is put on the network stream.
  std::function<void(Stream& network, int count)> before_network = {};
};

class TimedBackend final : public Backend {
 public:
  TimedBackend(const RoleContext& context, TimedSetup setup);
  ~TimedBackend() override;
  Device& device() override;
  const OperatorSet& operators() override;
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override;
  // Collectives that were put on a stream and exchange something, since construction.
  int collectives(Resource resource) const { return counts_[static_cast<std::size_t>(resource)]; }
  // Seconds, of this rank's host.
  double now() const;

 private:
  class TimedStream;
  class TimedEvent;
  class TimedDevice;
  class TimedCommunicator;
  struct Operators;
  static Stream& host_stream(Stream& stream);
  static void spend(Stream& stream, double seconds);

  const TimedSetup setup_;
  std::unique_ptr<Backend> network_, nvlink_;  // the first owns the device; both make communicators for it
  double host_time_ = 0;                       // exact clock
  std::unique_ptr<TimedDevice> device_;
  std::unique_ptr<Operators> operators_;
  std::array<int, resource_count> counts_{};
};

}  // namespace ananke::testing
