#include "plugins/backend_cuda/cupti_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

namespace ananke::cuda {
namespace {

namespace fs = std::filesystem;

struct Loaded {
  std::optional<CuptiLibrary> cupti;
  std::string why;
};

// Folders beside the CUDA runtime of this process, as the toolkit and pip lay them out.
std::vector<fs::path> likely_folders() {
  std::vector<fs::path> folders;
  Dl_info runtime{};
  if (dladdr(reinterpret_cast<const void*>(&cudaRuntimeGetVersion), &runtime) != 0 && runtime.dli_fname) {
    std::error_code ignored;
    for (const fs::path& file : {fs::path(runtime.dli_fname), fs::canonical(runtime.dli_fname, ignored)}) {
      const fs::path folder = file.parent_path();
      if (folder.empty()) continue;
      folders.push_back(folder);
      folders.push_back(folder.parent_path() / "extras/CUPTI/lib64");
      folders.push_back(folder.parent_path().parent_path() / "cuda_cupti/lib");
    }
  }
  if (*ANANKE_CUPTI_FOLDER != '\0') folders.emplace_back(ANANKE_CUPTI_FOLDER);
  return folders;
}

void* open_library(const std::string& name, std::string* why) {
  if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  std::vector<std::string> looked;
  for (const fs::path& folder : likely_folders()) {
    std::error_code ignored;
    const fs::path file = folder / name;
    if (!fs::exists(file, ignored)) {
      looked.push_back(folder.string());
      continue;
    }
    if (void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    const char* reason = dlerror();
    *why = fmt::format("{} cannot be loaded: {}", file.string(), reason ? reason : "the loader gives no reason");
    return nullptr;
  }
  *why = fmt::format(
      "{} was found neither by the loader nor in {}; it comes with the CUDA toolkit and as pip's nvidia-cuda-cupti; "
      "LD_LIBRARY_PATH may name its folder",
      name, fmt::join(looked, ", "));
  return nullptr;
}

class Finder {
 public:
  explicit Finder(void* handle) : handle_(handle) {}
  template <class Function>
  void find(const char* name, Function& function, bool needed = true) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (needed && function == nullptr) missing.emplace_back(name);
  }
  std::vector<std::string> missing;

 private:
  void* handle_;
};

Loaded load() {
  Loaded loaded;
  int version = CUDART_VERSION;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) version = CUDART_VERSION;
  const std::string name = fmt::format("libcupti.so.{}", version / 1000);
  void* handle = open_library(name, &loaded.why);
  if (handle == nullptr) return loaded;
  CuptiLibrary cupti;
  Finder finder(handle);
  finder.find("cuptiActivityEnable", cupti.enable);
  finder.find("cuptiActivityDisable", cupti.disable);
  finder.find("cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  finder.find("cuptiActivityGetNextRecord", cupti.next_record);
  finder.find("cuptiActivityFlushAll", cupti.flush);
  finder.find("cuptiActivityGetNumDroppedRecords", cupti.dropped);
  finder.find("cuptiActivityRegisterTimestampCallback", cupti.register_timestamp);
  finder.find("cuptiGetTimestamp", cupti.timestamp);
  finder.find("cuptiGetStreamIdEx", cupti.stream_id);
  finder.find("cuptiGetResultString", cupti.result_text);
  finder.find("cuptiActivityEnableDriverApi", cupti.enable_driver_call, false);
  finder.find("cuptiActivityEnableRuntimeApi", cupti.enable_runtime_call, false);
  if (!finder.missing.empty()) {
    loaded.why = fmt::format("{} is too old: it has no {}; use that of CUDA 12.8 or newer", name,
                             fmt::join(finder.missing, ", "));
    return loaded;
  }
  loaded.cupti = cupti;
  return loaded;
}

}  // namespace

const CuptiLibrary* cupti_library(std::string* why) {
  static const Loaded loaded = load();
  *why = loaded.why;
  return loaded.cupti ? &*loaded.cupti : nullptr;
}

}  // namespace ananke::cuda
