// Waiting in tests. What a test asserts is that a thing happens and in which order, never how long it takes: the limit
// only makes one that would hang say what did not come, and is far beyond what a loaded machine needs.
#pragma once

#include <chrono>
#include <thread>

namespace ananke {

constexpr std::chrono::seconds test_patience{90};

// Looks until `holds()` does; false where it never did.
template <class Predicate>
bool eventually(Predicate holds) {
  const auto until = std::chrono::steady_clock::now() + test_patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ananke
