// What a running job is told from outside, and tells: implemented over the control channel for workers, by a few lines
// in tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ananke {

struct ItemPlace;  // runtime/model/schedule.h

class RunControl {
 public:
  virtual ~RunControl() = default;
  virtual bool stop_requested() const = 0;
  virtual void phase(std::string_view what, std::uint64_t step) = 0;  // for failure reports
  virtual void item(const ItemPlace&) {}                              // likewise: one of the schedule begins
  virtual void console(const std::string& line) = 0;                  // never blocks
  // Marks what this job writes in its run folder, and says whether it still may: throws where another job has the
  // folder. Empty where there is no such thing.
  virtual std::string owner_mark() const { return {}; }
  virtual void confirm_owner() const {}
};

}  // namespace ananke
