#include "plugins/backend_cuda/device_choice.h"

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>
#include <map>

#include "plugins/backend_cuda/check.h"
#include "runtime/base/error.h"
#include "runtime/binding/visible_devices.h"

namespace ananke::cuda {
namespace {

std::string visible_text() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value ? fmt::format("CUDA_VISIBLE_DEVICES is '{}'", value) : "CUDA_VISIBLE_DEVICES is not set";
}

std::string list_of(const std::vector<VisibleDevice>& visible) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < visible.size(); ++i) texts.push_back(fmt::format("{}: {}", i, visible[i].uuid));
  return fmt::format("{}", fmt::join(texts, ", "));
}

int find(const std::vector<VisibleDevice>& visible, const std::string& wanted, const RankPlace& place) {
  int number = -1;
  const char* end = wanted.data() + wanted.size();
  if (const auto [rest, error] = std::from_chars(wanted.data(), end, number); error == std::errc() && rest == end) {
    if (number >= 0 && number < static_cast<int>(visible.size())) return number;
  } else {
    for (std::size_t i = 0; i < visible.size(); ++i) {
      if (visible[i].uuid == wanted) return static_cast<int>(i);
    }
  }
  fail(ErrorKind::config, "backend_cuda: rank {} is to have device '{}', but its process sees {} ({}); {}", place.rank,
       wanted, visible.size(), list_of(visible), visible_text());
}

}  // namespace

std::string why_no_device() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return "this machine has no NVIDIA driver (libcuda.so.1); load it, or use backend_host";
  }
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return "";
  cudaGetLastError();
  return fmt::format("this process sees no CUDA device ({}): {}; ask the scheduler for GPUs, and see nvidia-smi -L",
                     result == cudaSuccess ? "none is there" : cudaGetErrorString(result), visible_text());
}

std::vector<VisibleDevice> visible_devices() {
  const VisibleText text = read_visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"));
  if (const std::string reason = why_no_device(); !reason.empty()) fail(ErrorKind::resource, "{}", reason);
  int count = 0;
  check(cudaGetDeviceCount(&count), "count the CUDA devices");
  check_all_visible(text, static_cast<std::size_t>(count));
  std::vector<VisibleDevice> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), fmt::format("read the properties of CUDA device {}", i));
    devices.push_back({uuid_text(properties.uuid.bytes), properties.name});
  }
  return devices;
}

std::string uuid_text(std::span<const char, 16> bytes) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

int choose_device(const std::vector<VisibleDevice>& visible, const std::vector<std::string>& wanted,
                  const RankPlace& place) {
  const auto count = static_cast<int>(wanted.size());
  if (count > 0) {
    if (count != place.local_ranks && count != place.ranks) {
      fail(ErrorKind::config,
           "backend_cuda: device has {} entries; write one for each of the {} ranks of a node, or of the {} ranks of "
           "the "
           "job",
           count, place.local_ranks, place.ranks);
    }
    const int index = count == place.local_ranks ? place.local_rank : place.rank;
    return find(visible, wanted[static_cast<std::size_t>(index)], place);
  }
  if (visible.size() == 1) return 0;
  if (place.local_rank < static_cast<int>(visible.size())) return place.local_rank;
  fail(ErrorKind::config,
       "rank {} is the {} of {} ranks on its node, but its process sees {} GPUs ({}); use as many ranks per node as it "
       "has GPUs; {}",
       place.rank, place.local_rank, place.local_ranks, visible.size(), list_of(visible), visible_text());
}

void refuse_shared_devices(std::span<const int> ranks, std::span<const std::string> uuids,
                           std::span<const std::string> processes) {
  std::map<std::string, std::size_t> taken;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto [first, is_new] = taken.emplace(uuids[i], i);
    if (is_new) continue;
    const std::size_t other = first->second;
    fail(ErrorKind::config,
         "rank {} ({}) and rank {} ({}) both have {}; every rank needs a GPU of its own: give each task one (srun "
         "--gpus-per-task=1), let all see all of the node's, or name them in backend_cuda's device",
         ranks[other], processes[other], ranks[i], processes[i], uuids[i]);
  }
}

}  // namespace ananke::cuda
