// The build fingerprint: what must be equal on both sides of the plugin boundary. C++ objects cross it, so a plugin is
// source-compatible and build-identical: runtime version and the headers themselves, compiler, libstdc++ ABI, protobuf,
// and the flags that change what types look like or how the process computes.
// A string literal made by the preprocessor, so that it says what this very translation unit was compiled with.
#pragma once

#include <google/protobuf/stubs/common.h>

#include <string>  // defines _GLIBCXX_USE_CXX11_ABI

#include "ananke/interface.h"
#include "ananke/version.h"

#define ANANKE_STRING_OF(x) #x
#define ANANKE_STRING(x) ANANKE_STRING_OF(x)

#if defined(__clang__)
#define ANANKE_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define ANANKE_COMPILER "gcc " __VERSION__
#endif

#if defined(_GLIBCXX_USE_CXX11_ABI)
#define ANANKE_CXX_ABI "libstdc++ cxx11-abi " ANANKE_STRING(_GLIBCXX_USE_CXX11_ABI)
#else
#define ANANKE_CXX_ABI "another C++ library"
#endif

#if defined(ANANKE_SANITIZED)
#define ANANKE_SANITIZERS "on"
#else
#define ANANKE_SANITIZERS "off"
#endif

#if defined(_GLIBCXX_DEBUG)
#define ANANKE_CONTAINERS "debug"
#else
#define ANANKE_CONTAINERS "plain"
#endif

#if defined(__GXX_RTTI)
#define ANANKE_RTTI "on"
#else
#define ANANKE_RTTI "off"
#endif

#if defined(__EXCEPTIONS)
#define ANANKE_EXCEPTIONS "on"
#else
#define ANANKE_EXCEPTIONS "off"
#endif

// Loading a library linked with -ffast-math changes how small numbers round in code that is not its own.
#if defined(__FAST_MATH__)
#define ANANKE_MATH "fast"
#else
#define ANANKE_MATH "exact"
#endif

#define ANANKE_FINGERPRINT                                                                                     \
  "ananke " ANANKE_VERSION ", headers " ANANKE_INTERFACE ", " ANANKE_COMPILER ", " ANANKE_CXX_ABI              \
  ", protobuf " ANANKE_STRING(GOOGLE_PROTOBUF_VERSION) ", sanitizers " ANANKE_SANITIZERS                       \
                                                       ", containers " ANANKE_CONTAINERS ", rtti " ANANKE_RTTI \
                                                       ", exceptions " ANANKE_EXCEPTIONS ", math " ANANKE_MATH
