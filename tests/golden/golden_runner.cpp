// golden_runner FOLDER: one golden case (README.md). 0: within tolerances, 77: this build has no plugin for it.
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "runtime/base/error.h"
#include "tests/golden/optimizer_case.h"
#include "tests/golden/router_case.h"
#include "tests/test_gpus.h"

extern char** environ;

namespace ananke::golden {
namespace {

namespace fs = std::filesystem;
constexpr int skipped = 77;

struct Mesh {
  const char *ranks, *replicate, *expert;
};
constexpr Mesh meshes[] = {{"1", "1", "1"}, {"2", "1", "1"}, {"4", "1", "1"}, {"2", "1", "2"},
                           {"4", "1", "2"}, {"4", "1", "4"}, {"4", "2", "2"}};
constexpr Mesh bf16_meshes[] = {{"1", "1", "1"}, {"2", "1", "2"}};

// Ranks as processes with a GPU each.
bool by_processes(const Mesh& mesh) { return std::atoi(mesh.ranks) > 1 && std::atoi(mesh.ranks) <= test_gpus(); }

// Without GPUs a test's backend rounds as one that computes in bf16 (tests/rounding_backend).
const char* backend_of(const Mesh& mesh, std::string_view compute) {
  const char* backend = by_processes(mesh) ? "backend_cuda" : test_backend(std::atoi(mesh.ranks));
  return compute == "bf16" && backend == std::string_view("backend_host") ? "rounding_backend" : backend;
}

// A model case: `ananke parity` with its own tolerances, as a user runs it.
bool run_parity(const fs::path& folder, const Mesh& mesh, const char* compute) {
  const char* backend = backend_of(mesh, compute);
  std::printf("ananke parity %s --ranks %s --replicate %s --expert %s --backend %s --compute %s\n", folder.c_str(),
              mesh.ranks, mesh.replicate, mesh.expert, backend, compute);
  std::fflush(stdout);
  const std::string program = ANANKE_BINARY_DIR "/bin/ananke";
  setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/rounding_plugins:" ANANKE_BINARY_DIR "/tests/sharing_plugins",
         1);
  const char* arguments[] = {program.c_str(), "parity",
                             folder.c_str(),  "--ranks",
                             mesh.ranks,      "--replicate",
                             mesh.replicate,  "--expert",
                             mesh.expert,     "--backend",
                             backend,         "--compute",
                             compute,         by_processes(mesh) ? "--processes" : nullptr,
                             nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), nullptr, nullptr, const_cast<char**>(arguments), environ);
  if (error != 0) fail(ErrorKind::internal, "{} does not start: {}", program, std::strerror(error));
  int status = 0;
  if (waitpid(child, &status, 0) != child) fail(ErrorKind::internal, "{} was lost: {}", program, std::strerror(errno));
  if (WIFSIGNALED(status)) std::printf("ended by signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run_optimizer(const fs::path& folder) {
  const PluginCatalog catalog({ANANKE_BINARY_DIR "/lib/ananke"});
  const std::string optimizer = optimizer_of(folder);
  if (!catalog.find_by_name(optimizer)) {
    std::printf("skipped: this build has no plugin %s\n", optimizer.c_str());
    return skipped;
  }
  return run_optimizer_case(folder, catalog) ? 0 : 1;
}

int run(const fs::path& folder) {
  if (fs::exists(folder / "hyper.json")) return run_optimizer(folder);
  if (fs::exists(folder / "router.json")) {
    return run_router_case(folder, PluginCatalog({ANANKE_BINARY_DIR "/lib/ananke"})) ? 0 : 1;
  }
  if (!fs::exists(folder / "config.json")) {
    fail(ErrorKind::data,
         "no golden case in {}: a case is a folder with hyper.json, router.json or config.json; ANANKE_GOLDEN_DIR "
         "names a folder of such folders",
         folder.string());
  }
  bool good = true;
  for (const Mesh& mesh : meshes) good = run_parity(folder, mesh, "fp32") && good;
  for (const Mesh& mesh : bf16_meshes) good = run_parity(folder, mesh, "bf16") && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ananke::golden

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: golden_runner FOLDER\n");
    return 2;
  }
  try {
    return ananke::golden::run(arguments[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden_runner: %s\n", error.what());
    return 1;
  }
}
