// Order of work on a device. A stream runs what is put on it in order; events order streams among each other and tell
// the host when memory may be reused. Implemented by each backend.
#pragma once

#include <functional>
#include <memory>
#include <optional>

namespace ananke {

// One stream per physical resource (so a trace reads as a picture of the machine).
enum class Resource { compute, network, nvlink, host_to_device, device_to_host };
inline constexpr int resource_count = 5;
const char* name_of(Resource resource) noexcept;

// A point in a stream. Reusable: recording again replaces the point. Not recorded yet counts as reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() const = 0;      // never blocks
  virtual void synchronize() const = 0;  // blocks the host
  // Of two events made by Device::make_timer(): seconds from the point that `earlier` holds to the one that this holds,
  // both reached. Nothing where they are not, or where the backend measures no time.
  virtual std::optional<double> seconds_since(const Event& /*earlier*/) const { return std::nullopt; }
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void record(Event& event) = 0;
  // Work put on this stream later starts after the point that `event` holds now.
  virtual void wait(const Event& event) = 0;
  // Runs `work` on the host, in order with the rest, where device memory is memory that the host computes in (the host
  // backend). Any other backend refuses with Error(config): such work must then be a kernel of the plugin's own.
  // Views are copied into `work`, not referenced. What it throws, synchronize() throws.
  virtual void run_on_host(std::function<void()> work);
  // Blocks the host until all work is done; throws what a piece of work threw (the first one).
  virtual void synchronize() = 0;
};

}  // namespace ananke
