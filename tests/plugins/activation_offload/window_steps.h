// Steps as a pass makes them, over a window alone.
#pragma once

#include <functional>
#include <vector>

#include "plugins/activation_offload/window.h"

namespace ananke::activation_offload {

// One step of a model whose layers are all moved but the last: forwards and backwards of groups of microbatches, each
// stream held up now and then.
inline void run_step(const std::function<void(Resource)>& hold_up, Window& window, int moved, int slots, int groups,
                     float& number, const std::function<void(void*, float)>& write,
                     const std::function<void(void*, float)>& expect) {
  std::vector<int> takes;
  for (int group = 0; group < groups; ++group) {
    for (int layer = moved - 1; layer >= 0; --layer) {
      for (int m = 0; m < slots; ++m) takes.push_back(layer * slots + m);
    }
  }
  window.begin(takes);
  for (int group = 0; group < groups; ++group) {
    std::vector<float> values(static_cast<std::size_t>(moved * slots));
    const auto put = [&](int input) {
      values[static_cast<std::size_t>(input)] = ++number;
      write(window.place(input), number);
    };
    for (int m = 0; m < slots; ++m) put(m);
    for (int layer = 0; layer < moved; ++layer) {
      for (int m = 0; m < slots; ++m) {
        const int input = layer * slots + m;
        void* x = window.place(input);
        if (layer + 1 < moved) put(input + slots);
        hold_up(Resource::compute);
        expect(x, values[static_cast<std::size_t>(input)]);
        window.keep(input);
        hold_up(Resource::device_to_host);
      }
    }
    window.fetch_ahead();  // as the last layer's take does
    for (int layer = moved - 1; layer >= 0; --layer) {
      for (int m = 0; m < slots; ++m) {
        const int input = layer * slots + m;
        void* x = window.take(input);
        expect(x, values[static_cast<std::size_t>(input)]);
        hold_up(Resource::compute);
        expect(x, values[static_cast<std::size_t>(input)]);
        window.forget(input);
        hold_up(Resource::host_to_device);
      }
    }
  }
}

}  // namespace ananke::activation_offload
