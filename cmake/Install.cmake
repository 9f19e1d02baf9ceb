# The install tree: everything is found relative to the program, so it may be copied elsewhere.
#   bin/ananke  lib/libananke.so  lib/ananke/*.so  include/ananke/  lib/cmake/ananke/  share/ananke/{proto,site,templates}
#   share/bash-completion/completions/ananke  share/man/man1/ananke.1
# Plain lib, not lib64: the program looks for its plugins and share/ from there.
include(CMakePackageConfigHelpers)
set(share share/ananke)
set(package lib/cmake/ananke)

set_target_properties(ananke_command PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" EXPORT_NAME command)
install(TARGETS ananke ananke_command EXPORT ananke-targets LIBRARY DESTINATION lib RUNTIME DESTINATION bin
        INCLUDES DESTINATION include/ananke)
install(TARGETS ananke_tokenize RUNTIME DESTINATION bin)
get_property(plugins GLOBAL PROPERTY ananke_installed_plugins)
set_target_properties(${plugins} PROPERTIES INSTALL_RPATH "$ORIGIN/..")
install(TARGETS ${plugins} LIBRARY DESTINATION lib/ananke)

# What plugins are built with must equal what they are loaded into, sanitizers included.
if(ANANKE_SANITIZE)
  target_compile_options(ananke INTERFACE $<INSTALL_INTERFACE:-fsanitize=${ANANKE_SANITIZE}>)
  target_link_options(ananke INTERFACE $<INSTALL_INTERFACE:-fsanitize=${ANANKE_SANITIZE}>)
  target_compile_definitions(ananke INTERFACE $<INSTALL_INTERFACE:ANANKE_SANITIZED>)
endif()

install(DIRECTORY runtime DESTINATION include/ananke FILES_MATCHING PATTERN "*.h"
        PATTERN hdf5_handle.h EXCLUDE)  # needs libhdf5's own headers
install(DIRECTORY ${CMAKE_BINARY_DIR}/proto/ananke ${CMAKE_BINARY_DIR}/generated/ananke DESTINATION include/ananke
        FILES_MATCHING PATTERN "*.h")
install(DIRECTORY proto/ananke DESTINATION ${share}/proto FILES_MATCHING PATTERN "*.proto")
install(FILES runtime/plugin/note_section.cpp plugins/README.md DESTINATION ${share})
install(DIRECTORY plugins/templates site DESTINATION ${share})
install(FILES ${CMAKE_BINARY_DIR}/share/ananke.bash DESTINATION share/bash-completion/completions RENAME ananke)
install(FILES ${CMAKE_BINARY_DIR}/share/ananke.1 DESTINATION share/man/man1)

install(EXPORT ananke-targets NAMESPACE ananke:: DESTINATION ${package})
configure_package_config_file(cmake/ananke-config.cmake.in ${CMAKE_BINARY_DIR}/ananke-config.cmake
                              INSTALL_DESTINATION ${package})
# A plugin and its runtime are build-identical, so no other version will do.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ananke-config-version.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_BINARY_DIR}/ananke-config.cmake ${CMAKE_BINARY_DIR}/ananke-config-version.cmake
        cmake/AnankePlugin.cmake DESTINATION ${package})
