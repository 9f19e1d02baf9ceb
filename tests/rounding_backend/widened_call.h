// One call of an operator with bf16 views, as a call with f32 copies of them.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/operators/grouped_mlp.h"
#include "runtime/operators/reference/wire.h"

namespace ananke::testing {

// Arguments are replaced in place; finish() rounds what was written, behind the operator's work on the stream. Views at
// one address are one copy, so that an operator in place stays one.
class WidenedCall {
 public:
  explicit WidenedCall(Stream& stream) : stream_(stream) {}
  void in(TensorView& view) { widen(view, view.elements()); }
  void out(TensorView& view) {
    if (Copy* copy = widen(view, view.elements())) copy->written = true;
  }
  void in(MatrixStack& stack, std::int64_t groups) {
    const std::int64_t one = stack.first.elements();
    if (groups > 0) widen(stack.first, (groups - 1) * (groups > 1 ? stack.stride : 0) + one);
  }
  void finish() {
    for (auto& [at, copy] : copies_) {
      stream_.run_on_host([to = static_cast<std::uint16_t*>(at), copy = copy] {
        if (!copy.written) return;  // the copy lives until here
        for (std::size_t i = 0; i < copy.values->size(); ++i) to[i] = reference::to_bf16((*copy.values)[i]);
      });
    }
  }

 private:
  struct Copy {
    std::shared_ptr<std::vector<float>> values;
    bool written = false;
  };
  // Outputs as well: an operator may add to them, or leave rows as they were.
  Copy* widen(TensorView& view, std::int64_t elements) {
    if (view.dtype != DType::bf16) return nullptr;
    void* at = std::exchange(view.data, nullptr);
    view.dtype = DType::f32;
    if (!at) return nullptr;
    auto [place, fresh] = copies_.try_emplace(at);
    Copy& copy = place->second;
    if (fresh) {
      copy.values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(elements));
      stream_.run_on_host([from = static_cast<const std::uint16_t*>(at), values = copy.values] {
        for (std::size_t i = 0; i < values->size(); ++i) (*values)[i] = reference::from_bf16(from[i]);
      });
    }
    ANANKE_CHECK(copy.values->size() == static_cast<std::size_t>(elements), "views of {} and {} elements at one place",
                 copy.values->size(), elements);
    view.data = copy.values->data();
    return &copy;
  }
  Stream& stream_;
  std::map<void*, Copy> copies_;
};

}  // namespace ananke::testing
