// Which instruction sets the operators were compiled for: found in the compiler's macros by a file that is compiled
// like them, looked at by one that is compiled for any processor.
#pragma once

#include <cstdint>

namespace ananke::host {

namespace feature {
inline constexpr std::uint32_t avx = 1, avx2 = 2, fma = 4, bmi = 8, bmi2 = 16, avx512f = 32, avx512bw = 64,
                               avx512dq = 128, avx512vl = 256, avx512cd = 512;
}

extern const std::uint32_t build_features;

}  // namespace ananke::host
