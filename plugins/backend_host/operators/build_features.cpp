#include "plugins/backend_host/operators/build_features.h"

namespace ananke::host {

// Constant: no code of this file runs.
constinit const std::uint32_t build_features = 0
#ifdef __AVX__
                                               | feature::avx
#endif
#ifdef __AVX2__
                                               | feature::avx2
#endif
#ifdef __FMA__
                                               | feature::fma
#endif
#ifdef __BMI__
                                               | feature::bmi
#endif
#ifdef __BMI2__
                                               | feature::bmi2
#endif
#ifdef __AVX512F__
                                               | feature::avx512f
#endif
#ifdef __AVX512BW__
                                               | feature::avx512bw
#endif
#ifdef __AVX512DQ__
                                               | feature::avx512dq
#endif
#ifdef __AVX512VL__
                                               | feature::avx512vl
#endif
#ifdef __AVX512CD__
                                               | feature::avx512cd
#endif
    ;

}  // namespace ananke::host
