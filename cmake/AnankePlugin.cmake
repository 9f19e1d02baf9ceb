# The one way to build a plugin, in this tree and out of it. plugins/README.md is the guide.
#
# ananke_plugin(NAME adamw ROLE optimizer VERSION 1.0 DESCRIPTION "one line" SOURCES adamw.cpp ... [LIBRARIES ...]
#               [MESSAGE ananke.plugin.AdamW PROTO adamw.proto [IMPORT_ROOT dir]] [NEEDS libdriver.so.1]
#               [OUTPUT_DIRECTORY dir])
# One plugin: <build>/lib/ananke/<NAME>.so, hidden visibility, with its ELF note. One of the SOURCES ends in
# ANANKE_PLUGIN(...), see runtime/plugin/descriptor.h. PROTO is the config's file; its name for imports, and the folder
# of its generated header under <build>/generated, is its path below IMPORT_ROOT (default: CMAKE_SOURCE_DIR):
#   #include "plugins/adamw/adamw.pb.h"
# NEEDS is a library that the plugin does not link but cannot start without: `ananke plugins` says where it is missing.
# Targets: plugin_<NAME>, the .so, and plugin_<NAME>_objects, for tests that look inside one plugin (link the objects
# of one plugin only, and do not load the .so of the same plugin into that process: protobuf would abort it).
function(ananke_plugin)
  cmake_parse_arguments(P "" "NAME;ROLE;VERSION;DESCRIPTION;MESSAGE;PROTO;IMPORT_ROOT;NEEDS;OUTPUT_DIRECTORY"
                        "SOURCES;LIBRARIES" ${ARGN})
  foreach(needed NAME ROLE VERSION DESCRIPTION SOURCES)
    if(NOT P_${needed})
      message(FATAL_ERROR "ananke_plugin(${P_NAME}): ${needed} is missing")
    endif()
  endforeach()
  if(NOT P_NAME MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "ananke_plugin: NAME '${P_NAME}' must be lower-case letters, digits and _")
  endif()
  if("${P_VERSION}${P_DESCRIPTION}" MATCHES "[\\\"\n]")
    message(FATAL_ERROR "ananke_plugin(${P_NAME}): VERSION and DESCRIPTION are one line without \" and \\")
  endif()
  if((P_MESSAGE AND NOT P_PROTO) OR (P_PROTO AND NOT P_MESSAGE))
    message(FATAL_ERROR "ananke_plugin(${P_NAME}): MESSAGE and PROTO come together")
  endif()
  if(NOT P_OUTPUT_DIRECTORY)
    set(P_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/ananke)
  endif()
  set(target plugin_${P_NAME})
  if(TARGET ${target} OR TARGET ${target}_objects)  # two plugins of one name exist in tests only
    string(MAKE_C_IDENTIFIER "plugin_${P_OUTPUT_DIRECTORY}_${P_NAME}" target)
  endif()
  set(definitions ANANKE_PLUGIN_NAME="${P_NAME}" ANANKE_PLUGIN_ROLE="${P_ROLE}" ANANKE_PLUGIN_VERSION="${P_VERSION}"
      ANANKE_PLUGIN_DESCRIPTION="${P_DESCRIPTION}" ANANKE_PLUGIN_MESSAGE="${P_MESSAGE}")

  if(P_NEEDS)
    list(APPEND definitions ANANKE_PLUGIN_NEEDS="${P_NEEDS}")
  endif()

  set(generated)
  set(generated_root ${CMAKE_BINARY_DIR}/generated)
  if(P_PROTO)
    if(NOT P_IMPORT_ROOT)
      set(P_IMPORT_ROOT ${CMAKE_SOURCE_DIR})
    else()
      set(generated_root ${CMAKE_CURRENT_BINARY_DIR}/generated/${P_NAME})
    endif()
    file(MAKE_DIRECTORY ${generated_root})
    get_filename_component(proto ${P_PROTO} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
    file(RELATIVE_PATH stem ${P_IMPORT_ROOT} ${proto})
    string(REGEX REPLACE "\\.proto$" "" stem ${stem})
    set(generated ${generated_root}/${stem}.pb.cc)
    set(files ${CMAKE_CURRENT_BINARY_DIR}/${target}.files)
    add_custom_command(
      OUTPUT ${generated} ${generated_root}/${stem}.pb.h ${files}
      COMMAND protobuf::protoc -I${P_IMPORT_ROOT} -I${ananke_PROTO_ROOT} --cpp_out=${generated_root}
              --descriptor_set_out=${files} --include_imports --include_source_info ${proto}
      DEPENDS ${proto} ${ananke_PROTO_ROOT}/ananke/options.proto protobuf::protoc
      COMMENT "Config message of plugin ${P_NAME}")
    set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS -w)
    set_property(SOURCE ${ananke_NOTE_SOURCE} APPEND PROPERTY OBJECT_DEPENDS ${files})
  endif()

  add_library(${target}_objects OBJECT ${P_SOURCES} ${generated})
  target_compile_definitions(${target}_objects PRIVATE ${definitions})
  target_include_directories(${target}_objects BEFORE PUBLIC ${generated_root})
  target_link_libraries(${target}_objects PUBLIC ananke::ananke ${P_LIBRARIES}
                        PRIVATE $<TARGET_NAME_IF_EXISTS:ananke_warnings>)
  set_target_properties(${target}_objects PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                        POSITION_INDEPENDENT_CODE ON)

  add_library(${target} MODULE ${ananke_NOTE_SOURCE} $<TARGET_OBJECTS:${target}_objects>)
  target_compile_definitions(${target} PRIVATE ${definitions})
  if(P_PROTO)
    target_compile_definitions(${target} PRIVATE ANANKE_PLUGIN_FILES="${files}")
  endif()
  target_link_libraries(${target} PRIVATE ananke::ananke ${P_LIBRARIES})
  if(NOT ananke_SANITIZED)  # a sanitizer's functions come with the program
    target_link_options(${target} PRIVATE LINKER:-z,defs)  # what is missing is said by the linker, not by a job
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${P_NAME} PREFIX "" SUFFIX ".so"
                        LIBRARY_OUTPUT_DIRECTORY ${P_OUTPUT_DIRECTORY})
endfunction()
