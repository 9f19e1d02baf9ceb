include(GoogleTest)

# ananke_test(NAME <sentence-like name> LABEL quick|full|nightly|gpu|slurm SOURCES ... [LIBRARIES ...] [TIMEOUT seconds, default: 600])
# One GoogleTest binary; every TEST becomes a ctest of its own, "<NAME>.<Suite>.<Test>".
# Label slurm: on a local Slurm cluster of this build's own, which ctest starts before the first such test and stops
# after the last (tests/ops); its name is ANANKE_TEST_CLUSTER.
function(ananke_test)
  cmake_parse_arguments(T "" "NAME;LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT T_LABEL MATCHES "^(quick|full|nightly|gpu|slurm)$")
    message(FATAL_ERROR "ananke_test(${T_NAME}): LABEL must be quick, full, nightly, gpu or slurm, not '${T_LABEL}'")
  endif()
  # Only what hangs is to be ended: a loaded machine takes many times what an idle one does, a sanitizer more.
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  if(ANANKE_SANITIZE)
    math(EXPR T_TIMEOUT "4 * ${T_TIMEOUT}")
  endif()
  string(REPLACE "." "_" target "test_${T_NAME}")
  add_executable(${target} ${T_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE ananke ananke_warnings GTest::gtest GTest::gtest_main ${T_LIBRARIES})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  # A test is compiled more often than it runs: the big headers once for all, and lightly optimised.
  target_precompile_headers(${target} REUSE_FROM ananke_test_headers)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_compile_definitions(${target} PRIVATE ANANKE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             ANANKE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # What libraries do that a sanitizer cannot judge.
  set(sanitizer_options TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp)
  if(ANANKE_SANITIZE MATCHES address)
    set(sanitizer_options LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0)
  endif()
  set(lock)
  if(T_LABEL STREQUAL gpu)  # such a test takes all GPUs, and the memory of one
    set(lock RESOURCE_LOCK gpu)
  elseif(T_LABEL STREQUAL slurm)  # the nodes are few
    set(lock RESOURCE_LOCK slurm_cluster FIXTURES_REQUIRED slurm_cluster)
    target_compile_definitions(${target} PRIVATE ANANKE_TEST_CLUSTER="${ananke_test_cluster}")
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${T_NAME}." DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT} ${lock}
                       ENVIRONMENT "${sanitizer_options}")
endfunction()

string(SHA256 ananke_test_cluster ${CMAKE_BINARY_DIR})
string(SUBSTRING ${ananke_test_cluster} 0 8 ananke_test_cluster)
set(ananke_test_cluster "test-${ananke_test_cluster}")

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/test_headers.cpp CONTENT "int main() {}\n")
add_executable(ananke_test_headers EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/generated/test_headers.cpp)
target_link_libraries(ananke_test_headers PRIVATE ananke ananke_warnings GTest::gtest)
target_include_directories(ananke_test_headers PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(ananke_test_headers PRIVATE $<$<CONFIG:Release>:-O1>)
target_precompile_headers(ananke_test_headers PRIVATE <gtest/gtest.h> <fmt/format.h> <algorithm> <filesystem> <fstream>
                          <functional> <map> <memory> <span> <string> <thread> <vector>)

# Plugins are made as everybody makes them; only where things lie differs from the installed package.
set(ananke_SANITIZED ${ANANKE_SANITIZE})
set(ananke_PROTO_ROOT ${CMAKE_SOURCE_DIR}/proto)
set(ananke_NOTE_SOURCE ${CMAKE_SOURCE_DIR}/runtime/plugin/note_section.cpp)
include(AnankePlugin)  # ananke_plugin
