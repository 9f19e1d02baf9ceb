# Language, warnings, optimisation, sanitizers, ccache and where things are put.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # a build folder that is copied elsewhere still runs

find_program(ANANKE_CCACHE ccache)
if(ANANKE_CCACHE)
  # Without this leave ccache refuses whatever uses a precompiled header.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${ANANKE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# assert() stays on in Debug and Sanitize; Release keeps line tables so that a stack names its lines.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer")
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer")

# Warnings for our own code only: generated protobuf sources and third-party headers are not ours to fix.
add_library(ananke_warnings INTERFACE)
target_compile_options(ananke_warnings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror>")

if(ANANKE_SANITIZE)
  add_compile_options(-fsanitize=${ANANKE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ANANKE_SANITIZE})
  add_compile_definitions(ANANKE_SANITIZED)
  # GCC's flow analysis is misled by the checks it inserts itself, in std::regex and std::string for two. The release
  # build, which has no such checks, keeps these warnings.
  target_compile_options(ananke_warnings INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow
                         -Wno-stringop-overread -Wno-restrict -Wno-dangling-pointer)
endif()
