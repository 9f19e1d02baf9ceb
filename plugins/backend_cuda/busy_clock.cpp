#include "plugins/backend_cuda/busy_clock.h"

#include <algorithm>
#include <utility>

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {
namespace {

double seconds_between(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "ask for the time between two events");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace

BusyClock::~BusyClock() {
  for (const Wait& wait : waits_) {
    if (wait.begin) cudaEventDestroy(wait.begin);
    if (wait.end) cudaEventDestroy(wait.end);
  }
  for (const cudaEvent_t mark : marks_) {
    if (mark) cudaEventDestroy(mark);
  }
}

void BusyClock::make(cudaEvent_t& event) {
  if (!event) check(cudaEventCreate(&event), "make an event that keeps its time");
}

// Before the first mark nothing is measured.
void BusyClock::wait_begins(cudaStream_t stream) {
  if (!marked_) return;
  if (used_ == waits_.size()) waits_.emplace_back();
  Wait& wait = waits_[used_];
  make(wait.begin);
  make(wait.end);
  check(cudaEventRecord(wait.begin, stream), "record the begin of a wait");
}

void BusyClock::wait_ends(cudaStream_t stream) {
  if (!marked_) return;
  check(cudaEventRecord(waits_[used_].end, stream), "record the end of a wait");
  ++used_;
}

void BusyClock::mark(cudaStream_t stream) {
  make(marks_[1]);
  check(cudaEventRecord(marks_[1], stream), "record a mark");
}

double BusyClock::take() {
  if (marked_) {
    double waited = 0;
    for (std::size_t i = 0; i < used_; ++i) waited += seconds_between(waits_[i].begin, waits_[i].end);
    seconds_ += std::max(0.0, seconds_between(marks_[0], marks_[1]) - waited);
  }
  std::swap(marks_[0], marks_[1]);
  marked_ = true;
  used_ = 0;
  return seconds_;
}

}  // namespace ananke::cuda
