#include <string>

#include "plugins/backend_host/operators/build_features.h"
#include "plugins/backend_host/operators/checks.h"
#include "runtime/base/error.h"

namespace ananke::host {

void check_cpu() {
  std::string missing;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const auto look = [&](std::uint32_t bit, bool supported, const char* name) {
    if ((build_features & bit) && !supported) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  look(feature::avx, __builtin_cpu_supports("avx"), "AVX");
  look(feature::avx2, __builtin_cpu_supports("avx2"), "AVX2");
  look(feature::fma, __builtin_cpu_supports("fma"), "FMA");
  look(feature::bmi, __builtin_cpu_supports("bmi"), "BMI");
  look(feature::bmi2, __builtin_cpu_supports("bmi2"), "BMI2");
  look(feature::avx512f, __builtin_cpu_supports("avx512f"), "AVX512F");
  look(feature::avx512bw, __builtin_cpu_supports("avx512bw"), "AVX512BW");
  look(feature::avx512dq, __builtin_cpu_supports("avx512dq"), "AVX512DQ");
  look(feature::avx512vl, __builtin_cpu_supports("avx512vl"), "AVX512VL");
  look(feature::avx512cd, __builtin_cpu_supports("avx512cd"), "AVX512CD");
#endif
  if (!missing.empty()) {
    fail(ErrorKind::resource,
         "backend_host was built for processors with {}, which this one lacks; build with -DANANKE_ARCH= (any "
         "processor) or -DANANKE_ARCH=native on this machine",
         missing);
  }
}

}  // namespace ananke::host
