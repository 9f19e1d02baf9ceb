#include "plugins/activation_offload/window.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/device/numa.h"

namespace ananke::activation_offload {

Window::Window(Device& device, Wire* wire, const Layout& layout, const Shape& shape)
    : device_(device),
      wire_(wire),
      layout_(layout),
      shape_(shape),
      compute_(device.stream(Resource::compute)),
      out_stream_(device.stream(Resource::device_to_host)),
      in_stream_(device.stream(Resource::host_to_device)),
      ready_(device.make_event()) {
  clock_.start(device);
  const auto places = static_cast<std::size_t>(layout.places);
  values_ = device.memory().allocate(places * layout.stride, "block inputs");
  if (layout.fp8) {
    wire_memory_ = device.memory().allocate(places * layout.wire_stride, "block inputs on their way");
    scratch_ = device.memory().allocate(layout.scratch, "block inputs on their way");
    const std::vector<Wire::BlockPiece> pieces = block_rows(shape);
    pieces_ = device.memory().allocate(layout.table, "block inputs on their way");
    Buffer staging = device.host_memory().allocate(layout.table, "block inputs (host)");
    if (layout.table > 0) std::memcpy(staging.data(), pieces.data(), layout.table);
    device.copy(compute_, pieces_.data(), staging.data(), layout.table);
    compute_.synchronize();
  }
  {
    const NumaPreference near(device.numa_node());
    for (std::size_t i = 0; i < layout.moved.size(); ++i) {
      slabs_.push_back(device.host_memory().allocate(layout.host_of_layer(), "block inputs (host)"));
    }
  }
  for (std::size_t i = 0; i < places; ++i) {
    Place place;
    place.values = static_cast<std::byte*>(values_.data()) + i * layout.stride;
    if (layout.fp8) place.wire = static_cast<std::byte*>(wire_memory_.data()) + i * layout.wire_stride;
    place.left = device.make_event();
    place.arrived = device.make_event();
    place.used = device.make_event();
    places_.push_back(std::move(place));
    free_.push_back(static_cast<int>(i));
  }
  inputs_.resize(layout.moved.size() * static_cast<std::size_t>(layout.microbatches));
}

void Window::begin(std::vector<int> takes) {
  clock_.collect();
  takes_ = std::move(takes);
  next_ = 0;
  kept_.clear();
  for (Input& one : inputs_) {  // of a step that took none of them back
    if (one.place >= 0) free_.push_back(one.place);
    one = {};
  }
}

Window::Input& Window::input(int number) {
  ANANKE_CHECK(number >= 0 && static_cast<std::size_t>(number) < inputs_.size(), "input {} of {}", number,
               inputs_.size());
  return inputs_[static_cast<std::size_t>(number)];
}

std::byte* Window::slot(int number) const {
  const auto layer = static_cast<std::size_t>(number / layout_.microbatches);
  const auto microbatch = static_cast<std::size_t>(number % layout_.microbatches);
  return static_cast<std::byte*>(slabs_.at(layer).data()) + microbatch * layout_.wire_stride;
}

int Window::free_place() {
  if (free_.empty()) return -1;
  const int place = free_.front();
  free_.pop_front();
  return place;
}

// That of the input kept longest, which is on the host alone from now on.
int Window::place_of_kept() {
  ANANKE_CHECK(!kept_.empty(), "all {} places of the window are in use", places_.size());
  Input& oldest = input(kept_.front());
  kept_.pop_front();
  oldest.state = State::host;
  return std::exchange(oldest.place, -1);
}

// The compute stream goes on behind `event`; how long it stood is measured.
void Window::stall(const Event& event) {
  clock_.begin(CopyClock::stalls, compute_);
  compute_.wait(event);
  clock_.end(compute_);
}

void* Window::place(int number) {
  Input& one = input(number);
  if (one.place < 0) {
    ANANKE_CHECK(one.state == State::nowhere, "input {} is written while it waits on the host", number);
    int place = free_place();
    if (place < 0) place = place_of_kept();
    compute_.wait(*places_[static_cast<std::size_t>(place)].arrived);  // where a step that failed never took it
    stall(*places_[static_cast<std::size_t>(place)].left);
    one = {State::written, place};
  }
  return places_[static_cast<std::size_t>(one.place)].values;
}

void Window::keep(int number) {
  Input& one = input(number);
  ANANKE_CHECK(one.state == State::written, "input {} is kept, but was not written", number);
  Place& place = places_[static_cast<std::size_t>(one.place)];
  if (layout_.fp8) quantise(place);
  compute_.record(*ready_);
  out_stream_.wait(*ready_);
  clock_.begin(CopyClock::copies, out_stream_);
  device_.copy(out_stream_, slot(number), layout_.fp8 ? place.wire : place.values, layout_.wire);
  clock_.end(out_stream_);
  out_stream_.record(*place.left);
  out_ += layout_.wire;
  one.state = State::kept;
  kept_.push_back(number);
}

void Window::fetch(Input& one, int number, int place_number) {
  Place& place = places_[static_cast<std::size_t>(place_number)];
  in_stream_.wait(*place.used);
  in_stream_.wait(*place.left);
  clock_.begin(CopyClock::copies, in_stream_);
  device_.copy(in_stream_, layout_.fp8 ? place.wire : place.values, slot(number), layout_.wire);
  clock_.end(in_stream_);
  in_stream_.record(*place.arrived);
  in_ += layout_.wire;
  one = {State::fetched, place_number};
}

void Window::fetch_ahead() {
  for (; next_ < takes_.size(); ++next_) {
    const int number = takes_[next_];
    Input& one = input(number);
    if (one.state == State::kept) {  // still there
      kept_.erase(std::find(kept_.begin(), kept_.end(), number));
      one.state = State::fetched;
    } else if (one.state == State::host) {
      const int place = free_place();
      if (place < 0) return;
      fetch(one, number, place);
    } else if (one.state != State::fetched && one.state != State::taken) {
      return;  // its forward comes later
    }
  }
}

void* Window::take(int number) {
  fetch_ahead();
  Input& one = input(number);
  if (one.state == State::kept) {
    kept_.erase(std::find(kept_.begin(), kept_.end(), number));
  } else if (one.state == State::host) {
    const int place = free_place();
    fetch(one, number, place < 0 ? place_of_kept() : place);
    if (next_ < takes_.size() && takes_[next_] == number) ++next_;  // or prefetching would wait for it
  } else {
    ANANKE_CHECK(one.state == State::fetched, "input {} is taken, but was not kept", number);
  }
  one.state = State::taken;
  const Place& place = places_[static_cast<std::size_t>(one.place)];
  stall(*place.arrived);
  if (layout_.fp8) dequantise(place);  // also where it never left, so that results do not depend on the window
  return place.values;
}

void Window::forget(int number) {
  Input& one = input(number);
  ANANKE_CHECK(one.state == State::written || one.state == State::taken, "input {} is forgotten, but is not there",
               number);
  compute_.record(*places_[static_cast<std::size_t>(one.place)].used);
  free_.push_back(one.place);
  one = {};
  fetch_ahead();
}

TensorView Window::pieces() const {
  return pieces_.view(DType::i64, {static_cast<std::int64_t>(layout_.table / sizeof(Wire::BlockPiece)), Wire::fields});
}

TensorView Window::values_of(const Place& place) const { return {place.values, shape_.compute, {shape_.elements()}}; }

void Window::quantise(const Place& place) {
  TensorView values = values_of(place);
  if (layout_.scratch > 0) {
    const TensorView wide = scratch_.view(DType::f32, values.shape);
    wire_->from_bf16(compute_, values, wide);
    values = wide;
  }
  wire_->quantise(compute_, pieces(), values, {place.wire, DType::u8, {static_cast<std::int64_t>(layout_.wire)}});
}

void Window::dequantise(const Place& place) {
  wire_->dequantise(compute_, pieces(), {place.wire, DType::u8, {static_cast<std::int64_t>(layout_.wire)}},
                    values_of(place));
}

}  // namespace ananke::activation_offload
