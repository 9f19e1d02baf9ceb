// Says who it is, or why it cannot: identity_probe DEADLINE_MS
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/bootstrap/identity.h"

int main(int argc, char** argv) {
  try {
    const auto me = ananke::identify(std::chrono::milliseconds(argc > 1 ? std::atoi(argv[1]) : 10'000));
    std::printf("rank %d of %d, local %d of %d, node %d %s, job %s by %s\n", me.rank, me.size, me.local_rank,
                me.local_size, me.node_index, me.host.c_str(), me.job_id.c_str(), me.source.c_str());
  } catch (const ananke::Error& error) {
    std::printf("%s: %s\n", ananke::name_of(error.kind()), error.what());
    std::fflush(stdout);
    _exit(static_cast<int>(error.kind()));  // a library that hangs is left behind
  }
  return 0;
}
