// Start to first collective, against a bare program with the same libraries and the same mesh, in turns:
//   startup_bench [ROUNDS]
//   startup_bench slurm [ROUNDS]   by srun on four nodes, against plain srun of the bare program: submits itself, where
//                                  SLURM_CONF or the system says which cluster (ops/local-cluster environment)
// One line per number of ranks; exit code 1 past a limit: 1.5 times the bare program, of 4 local ranks 1 s.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <stdexcept>
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
    throw std::runtime_error("this failed: " + command);
  }
  return static_cast<double>(std::strtoll(line.data(), nullptr, 10) - begin) / 1e6;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Case {
  int ranks;
  std::string bare, ours;
  double limit_ms = 0;  // 0: 1.5 times the bare program
};

bool compare(const Case& one, int rounds) {
  std::vector<double> bare_ms, our_ms;
  for (int round = 0; round < rounds; ++round) {
    bare_ms.push_back(measure(one.bare));
    our_ms.push_back(measure(one.ours));
  }
  const double mine = median(our_ms), other = median(bare_ms);
  const bool good = one.limit_ms > 0 ? mine <= one.limit_ms : mine <= 1.5 * other;
  std::printf("startup %2d ranks: %7.1f ms, bare %7.1f ms, ratio %.2f, limit %s: %s\n", one.ranks, mine, other,
              mine / other, one.limit_ms > 0 ? fmt::format("{:.0f} ms", one.limit_ms).c_str() : "ratio 1.5",
              good ? "ok" : "TOO SLOW");
  std::fflush(stdout);
  return good;
}

// In an allocation of four nodes, on the first of them.
bool compare_under_slurm(const std::filesystem::path& folder, const std::string& ours, int rounds) {
  bool within = true;
  for (int ranks : {4, 16, 32}) {
    const std::string bare = fmt::format(
        "BARE_INTERFACE=eth0 exec srun --nodes=4 --ntasks={} --ntasks-per-node={} --cpus-per-task=1 "
        "--distribution=block --mpi=pmix --export=ALL {}",
        ranks, ranks / 4, (folder / "bare_launch").string());
    within = compare({ranks, bare, fmt::format(fmt::runtime(ours + " eth0"), ranks)}, rounds) && within;
  }
  return within;
}

// What the job said, and its exit code.
int submit(const std::filesystem::path& folder, const std::string& run_dir, int rounds) {
  const std::string output = run_dir + "/output";
  const int status = std::system(
      fmt::format(
          "sbatch --wait --quiet --nodes=4 --ntasks-per-node=8 --cpus-per-task=1 --time=20 --output={} --wrap='exec "
          "{} inside {}'",
          output, (folder / "startup_bench").string(), rounds)
          .c_str());
  std::fflush(stdout);
  std::system(fmt::format("cat {}", output).c_str());
  return status == 0 ? 0 : WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 1 : 2;
}

bool compare_here(const std::filesystem::path& folder, const std::string& ours, int rounds) {
  bool within = true;
  for (int ranks : {4, 16, 32}) {
    const std::string bare = fmt::format("exec {} {}", (folder / "bare_launch").string(), ranks);
    const Case one{ranks, bare, fmt::format(fmt::runtime(ours), ranks), ranks == 4 ? 1000.0 : 0};
    within = compare(one, rounds) && within;
  }
  return within;
}

// Exit code. `run_dir`: a folder that all nodes have.
int run(const std::string& mode, int rounds, const std::string& run_dir) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  if (mode == "slurm") return submit(folder, run_dir, rounds);
  const std::string plugin = (folder.parent_path() / "lib/ananke/backend_host.so").string();
  const std::string ours = fmt::format("exec {} {} {{}} {}", (folder / "startup_worker").string(), plugin, run_dir);
  const bool within = mode == "inside" ? compare_under_slurm(folder, ours, rounds) : compare_here(folder, ours, rounds);
  return within ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int number = mode == "slurm" || mode == "inside" ? 2 : 1;
  const int rounds = argc > number ? std::max(1, std::atoi(argv[number])) : 5;
  std::string run_dir = "/tmp/ananke-startup.XXXXXX";
  if (mkdtemp(run_dir.data()) == nullptr) return 2;
  int code = 2;
  try {
    code = run(mode, rounds, run_dir);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "startup_bench: %s\n", error.what());
  }
  std::filesystem::remove_all(run_dir);
  return code;
}
