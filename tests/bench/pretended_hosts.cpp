// LD_PRELOAD=build/tests/libpretended_hosts.so ANANKE_PRETENDED_HOSTS=2 ananke run ...: NCCL takes every two
// neighbouring ranks of a job for those of a host of their own, so that two GPUs of one machine talk through sockets
// when they belong to different ones: the slow link between nodes, without nodes. Only programs with a PMIx rank are
// touched.
#include <cstdlib>
#include <string>

namespace {

__attribute__((constructor)) void pretend() {
  const char* rank = std::getenv("PMIX_RANK");
  const char* per_host = std::getenv("ANANKE_PRETENDED_HOSTS");
  if (!rank || !per_host || std::atoi(per_host) < 1) return;
  const std::string host = "pretended-" + std::to_string(std::atoi(rank) / std::atoi(per_host));
  setenv("NCCL_HOSTID", host.c_str(), 1);
}

}  // namespace
