// The inputs that are on the device only while they are needed: where each is, and its way to the host and back.
//
//   place ─ written ─ keep ─ kept (both there and on its way out) ─ ... on the host alone, once its place is given on
//   ... fetched (on its way back, or back) ─ take ─ taken ─ forget
//
// In forward a new input takes a place that nobody has, or that of the one kept longest, when that has left. In
// backward inputs come back in the order in which they will be taken, into places that are given up.
//
// Hazards, and who orders them: a copy out reads its place behind the forward (ready_) and before anybody writes there
// again (Place::left); a copy in writes behind the backward that used the place (Place::used) and what left it; a
// backward reads behind the copy in (Place::arrived). A host slot is written again only behind the backward that
// followed its copy in.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "plugins/activation_offload/copy_clock.h"
#include "plugins/activation_offload/layout.h"
#include "runtime/device/device.h"
#include "runtime/operators/operator_set.h"

namespace ananke::activation_offload {

class Window {
 public:
  // `wire`: of fp8. Allocates places on the device and slabs on the host, one for each moved layer.
  Window(Device& device, Wire* wire, const Layout& layout, const Shape& shape);

  // Inputs are numbered: (index of the moved layer) x microbatches + microbatch. `takes`: all takes of the step, in
  // order.
  void begin(std::vector<int> takes);
  void* place(int input);
  void keep(int input);
  void* take(int input);
  void forget(int input);
  void fetch_ahead();  // as far as there are places

  std::uint64_t bytes_out() const { return out_; }
  std::uint64_t bytes_in() const { return in_; }
  CopyClock& clock() { return clock_; }
  std::span<const Buffer> slabs() const { return slabs_; }

 private:
  enum class State { nowhere, written, kept, host, fetched, taken };
  struct Input {
    State state = State::nowhere;
    int place = -1;
  };
  struct Place {
    std::byte* values = nullptr;
    std::byte* wire = nullptr;  // fp8
    std::unique_ptr<Event> left, arrived, used;
  };
  Input& input(int number);
  std::byte* slot(int number) const;
  int free_place();  // -1: none
  int place_of_kept();
  void fetch(Input& one, int number, int place);
  void stall(const Event& event);
  void quantise(const Place& place);
  void dequantise(const Place& place);
  TensorView values_of(const Place& place) const;
  TensorView pieces() const;

  Device& device_;
  Wire* const wire_;
  const Layout layout_;
  const Shape shape_;
  Stream &compute_, &out_stream_, &in_stream_;
  Buffer values_, wire_memory_, scratch_, pieces_;
  std::vector<Buffer> slabs_;
  std::vector<Place> places_;
  std::vector<Input> inputs_;
  std::deque<int> free_;  // places
  std::deque<int> kept_;  // inputs, the one kept longest first
  std::vector<int> takes_;
  std::size_t next_ = 0;  // the first of them that is not fetched
  std::unique_ptr<Event> ready_;
  CopyClock clock_;
  std::uint64_t out_ = 0, in_ = 0;
};

}  // namespace ananke::activation_offload
