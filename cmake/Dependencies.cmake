# Third-party packages. README has the table of what each is for.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PMIX REQUIRED IMPORTED_TARGET pmix)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
# Name the serial variant: plain "hdf5" follows update-alternatives and may be an MPI build.
pkg_search_module(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
# The pthread variant by name, for the same reason.
pkg_search_module(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
# Linked by ananke-tokenize alone: its protobuf must not meet ours.
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
find_package(ZLIB REQUIRED)
find_library(GLOO_LIBRARY gloo REQUIRED)
find_path(GLOO_INCLUDE gloo/context.h REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
if(ANANKE_TESTS)
  find_package(GTest REQUIRED)
endif()
