// Start to first collective, against a bare program with the same libraries and the same mesh, in turns:
//   startup_bench [ROUNDS]
// One line per number of ranks; exit code 1 past a limit: 4 ranks 1 s, 16 and 32 ranks 1.5 times the bare program.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace {

long long now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000ll + time.tv_nsec;
}

// Milliseconds from before the command to the time that it prints as the first thing.
double measure(const std::string& command) {
  const long long begin = now_ns();
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 256> line{};
  const bool printed = pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr;
  std::array<char, 256> rest{};
  while (pipe != nullptr && std::fgets(rest.data(), rest.size(), pipe) != nullptr) {
  }
  if (pipe == nullptr || pclose(pipe) != 0 || !printed) {
    std::fprintf(stderr, "startup_bench: this failed: %s\n", command.c_str());
    std::exit(2);
  }
  return static_cast<double>(std::strtoll(line.data(), nullptr, 10) - begin) / 1e6;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string plugin = (folder.parent_path() / "lib/ananke/backend_host.so").string();
  std::string run_dir = (std::filesystem::temp_directory_path() / "ananke-startup.XXXXXX").string();
  if (mkdtemp(run_dir.data()) == nullptr) return 2;
  bool within = true;
  for (int ranks : {4, 16, 32}) {
    const std::string bare = fmt::format("exec {} {}", (folder / "bare_launch").string(), ranks);
    const std::string ours =
        fmt::format("exec {} {} {} {}", (folder / "startup_worker").string(), plugin, ranks, run_dir);
    std::vector<double> bare_ms, our_ms;
    for (int round = 0; round < rounds; ++round) {
      bare_ms.push_back(measure(bare));
      our_ms.push_back(measure(ours));
    }
    const double mine = median(our_ms), other = median(bare_ms);
    const bool good = ranks == 4 ? mine <= 1000 : mine <= 1.5 * other;
    std::printf("startup %2d ranks: %7.1f ms, bare %7.1f ms, ratio %.2f, limit %s: %s\n", ranks, mine, other,
                mine / other, ranks == 4 ? "1000 ms" : "ratio 1.5", good ? "ok" : "TOO SLOW");
    std::fflush(stdout);
    within = within && good;
  }
  std::filesystem::remove_all(run_dir);
  return within ? 0 : 1;
}
