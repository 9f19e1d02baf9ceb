// What the benches of several GPUs share: ranks as processes with a GPU each, and times on a stream.
#pragma once

#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/plugins/backend_cuda/gpu.h"

extern char** environ;

namespace ananke::testing {

// Median time in microseconds on a stream.
class Clock {
 public:
  static constexpr int warm_up = 3, rounds = 20;
  explicit Clock(Stream& stream) : stream_(stream) {
    for (cudaEvent_t* event : {&begin_, &end_}) cuda::check(cudaEventCreate(event), "make an event");
  }
  ~Clock() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  double time(const std::function<void()>& run) {
    std::vector<float> times;
    for (int i = -warm_up; i < rounds; ++i) {
      cuda::check(cudaEventRecord(begin_, cuda::raw(stream_)), "record an event");
      run();
      cuda::check(cudaEventRecord(end_, cuda::raw(stream_)), "record an event");
      stream_.synchronize();
      float milliseconds = 0;
      cuda::check(cudaEventElapsedTime(&milliseconds, begin_, end_), "take a time");
      if (i >= 0) times.push_back(milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return static_cast<double>(times[rounds / 2]) * 1e3;
  }

 private:
  Stream& stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// This program once more, with `variable` ("NAME=value", or empty) added to the environment.
inline pid_t start_again(std::vector<std::string> arguments, std::string variable = "") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  arguments.insert(arguments.begin(), program);
  std::vector<char*> words, variables;
  for (auto& argument : arguments) words.push_back(argument.data());
  for (char** one = environ; *one; ++one) variables.push_back(*one);
  if (!variable.empty()) variables.push_back(variable.data());
  words.push_back(nullptr);
  variables.push_back(nullptr);
  pid_t process = 0;
  if (posix_spawn(&process, program.c_str(), nullptr, nullptr, words.data(), variables.data()) != 0) {
    fail(ErrorKind::resource, "cannot start {}", program);
  }
  return process;
}

// The exit code of a bench; what it throws is said, by `name`, and its kind is the code.
inline int told(const char* name, const std::function<int()>& run) {
  try {
    return run();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return static_cast<int>(error.kind());
  }
}

// The worst exit status.
inline int wait_for_all(const std::vector<pid_t>& processes) {
  int worst = 0;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return worst;
}

}  // namespace ananke::testing
