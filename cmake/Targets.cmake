include(GoogleTest)

# ananke_test(NAME <sentence-like name> LABEL quick|full|nightly SOURCES ... [LIBRARIES ...] [TIMEOUT seconds])
# One GoogleTest binary; every TEST becomes a ctest of its own, "<NAME>.<Suite>.<Test>".
function(ananke_test)
  cmake_parse_arguments(T "" "NAME;LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT T_LABEL MATCHES "^(quick|full|nightly)$")
    message(FATAL_ERROR "ananke_test(${T_NAME}): LABEL must be quick, full or nightly, not '${T_LABEL}'")
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  string(REPLACE "." "_" target "test_${T_NAME}")
  add_executable(${target} ${T_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE ananke ananke_warnings GTest::gtest GTest::gtest_main ${T_LIBRARIES})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE ANANKE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             ANANKE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # What libraries do that a sanitizer cannot judge.
  set(sanitizer_options TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp)
  if(ANANKE_SANITIZE MATCHES address)
    set(sanitizer_options LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${T_NAME}." DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT}
                       ENVIRONMENT "${sanitizer_options}")
endfunction()

# Plugins are made as everybody makes them; only where things lie differs from the installed package.
set(ananke_PROTO_ROOT ${CMAKE_SOURCE_DIR}/proto)
set(ananke_NOTE_SOURCE ${CMAKE_SOURCE_DIR}/runtime/plugin/note_section.cpp)
include(AnankePlugin)  # ananke_plugin
