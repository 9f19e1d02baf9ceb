#include "plugins/fsdp/host_gradients.h"

#include <utility>

#include "runtime/base/error.h"

namespace ananke::fsdp {

HostGradients::HostGradients(Device& device, Elementwise& elementwise, std::vector<Owned> owned,
                             const TensorView& region, const TensorView& squares)
    : device_(device),
      elementwise_(elementwise),
      compute_(device.stream(Resource::compute)),
      network_(device.stream(Resource::network)),
      in_(device.stream(Resource::host_to_device)),
      out_(device.stream(Resource::device_to_host)),
      squares_(squares),
      summed_(device.make_event()) {
  const std::int64_t elements = region ? region.elements() / slot_count : 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].left = device.make_event();
    if (region) slots_[i].memory = region.slice(static_cast<std::int64_t>(i) * elements, elements);
  }
  std::size_t runs = 0;
  for (Owned& one : owned) {
    Unit& unit = units_.emplace_back();
    unit.owned = std::move(one);
    unit.first_run = runs;
    runs += unit.owned.runs.size();
    unit.arrived = device.make_event();
    unit.left = device.make_event();
  }
  ANANKE_CHECK(squares_.elements() == static_cast<std::int64_t>(runs), "{} sums of squares for {} runs",
               squares_.elements(), runs);
}

void HostGradients::begin() {
  for (Unit& unit : units_) unit.fresh = unit.owned.on_host;
  if (squares_) device_.zero(network_, squares_.data, squares_.bytes());
}

// The sum so far, for `user`; zeros where there is none yet.
void HostGradients::fetch(Unit& unit, const TensorView& to, Stream& user) {
  if (std::exchange(unit.fresh, false)) {
    device_.zero(user, to.data, to.bytes());
    return;
  }
  in_.wait(*unit.left);
  device_.copy(in_, to.data, unit.owned.sum.data, to.bytes());
  in_.record(*unit.arrived);
  user.wait(*unit.arrived);
  unit.in += to.bytes();
}

TensorView HostGradients::open(int index) {
  Unit& unit = at(index);
  const TensorView sum = current().memory.slice(0, unit.owned.sum.elements());
  network_.wait(*current().left);
  if (!unit.fresh) in_.wait(*current().left);
  if (sum.elements() > 0) fetch(unit, sum, network_);
  return sum;
}

void HostGradients::close(int index, bool last) {
  Unit& unit = at(index);
  const TensorView sum = current().memory.slice(0, unit.owned.sum.elements());
  if (sum.elements() > 0) send(unit, sum, last, *current().left);
  ++next_;
}

bool HostGradients::bring_home(int unit, const TensorView& home, const std::vector<const Event*>& free) {
  if (std::exchange(at(unit).fresh, false)) return false;
  for (const Event* event : free) in_.wait(*event);
  if (home.elements() > 0) fetch(at(unit), home, compute_);
  return true;
}

void HostGradients::take_from(int unit, const TensorView& home, bool last, Event& left) {
  if (home.elements() > 0) send(at(unit), home, last, left);
}

void HostGradients::send(Unit& unit, const TensorView& from, bool last, Event& left) {
  for (std::size_t i = 0; last && i < unit.owned.runs.size(); ++i) {
    const FragmentRun& run = unit.owned.runs[i];
    elementwise_.square_sum(network_, from.slice(run.begin, run.count),
                            squares_.slice(static_cast<std::int64_t>(unit.first_run + i), 1));
  }
  network_.record(*summed_);
  out_.wait(*summed_);
  device_.copy(out_, unit.owned.sum.data, from.data, from.bytes());
  out_.record(*unit.left);
  out_.record(left);
  unit.out += from.bytes();
}

void HostGradients::finish() {
  for (Unit& unit : units_) {
    const bool untouched = std::exchange(unit.fresh, false);
    if (!untouched || unit.owned.sum.elements() == 0) continue;
    device_.zero(out_, unit.owned.sum.data, unit.owned.sum.bytes());
  }
}

}  // namespace ananke::fsdp
