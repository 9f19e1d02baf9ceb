# The CUDA toolkit with nvcc, cuBLASLt and NCCL, for backend_cuda and the plugins with kernels.
#   ANANKE_CUDA=auto  build them where everything is found (default); on: an error where it is not; off: do not look
#   CUDACXX, CUDAToolkit_ROOT, CMAKE_PREFIX_PATH say where to look first. Otherwise: the toolkit of the nvcc in PATH, the
#   system, and what pip installed for the python3 in PATH (nvidia-cuda-*, nvidia-nccl-*, nvidia-cudnn-*).
# Sets ANANKE_CUDA_FOUND, and where it is false ANANKE_CUDA_MISSING, the reason in one line. Targets: CUDA::cudart,
# CUDA::cublasLt, ananke::nccl, and ananke::cudnn where cuDNN is there (ANANKE_CUDNN_FOUND); with
# ANANKE_CUDNN_FRONTEND_INCLUDE, the headers of its graph API, where those are; ANANKE_CUPTI_INCLUDE and _LIBRARY likewise.
set(ANANKE_CUDA auto CACHE STRING "Build the CUDA backend: auto, on or off")
set_property(CACHE ANANKE_CUDA PROPERTY STRINGS auto on off)
set(ANANKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures that kernels are built for, as CMAKE_CUDA_ARCHITECTURES")
set(ANANKE_CUDA_FOUND FALSE)
set(ANANKE_CUDNN_FOUND FALSE)
set(ANANKE_CUDA_MISSING "")

# Folders of packages of the python3 in PATH.
function(ananke_site_packages result)
  find_program(ANANKE_PYTHON NAMES python3 python)
  set(folders)
  if(ANANKE_PYTHON)
    execute_process(COMMAND ${ANANKE_PYTHON} -c "import sys; print(';'.join(p for p in sys.path if p.endswith('-packages')))"
                    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# Folders of pip's nvidia packages: .../nvidia/cu13, .../nvidia/nccl, ...
function(ananke_pip_folders result)
  find_program(ANANKE_PYTHON NAMES python3 python)
  set(folders)
  if(ANANKE_PYTHON)
    execute_process(COMMAND ${ANANKE_PYTHON} -c
                            "import glob, nvidia; print(';'.join(f for p in nvidia.__path__ for f in sorted(glob.glob(p + '/*'))))"
                    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# ananke_cuda_library(nccl HEADER nccl.h NAMES nccl libnccl.so.2): target ananke::nccl, ANANKE_NCCL_LIBRARY and _INCLUDE.
function(ananke_cuda_library name)
  cmake_parse_arguments(L "" "HEADER" "NAMES" ${ARGN})
  string(TOUPPER ${name} upper)
  # Prefix, toolkit, system, pip, in this order; header and library from one place.
  find_path(ANANKE_${upper}_INCLUDE ${L_HEADER} HINTS ${CMAKE_PREFIX_PATH} ${CUDAToolkit_INCLUDE_DIRS}
            PATHS ${pip_folders} PATH_SUFFIXES include)
  get_filename_component(root "${ANANKE_${upper}_INCLUDE}" DIRECTORY)
  find_library(ANANKE_${upper}_LIBRARY NAMES ${L_NAMES} HINTS ${root} ${CMAKE_PREFIX_PATH} ${CUDAToolkit_LIBRARY_DIR}
               PATHS ${pip_folders} PATH_SUFFIXES lib lib64)
  mark_as_advanced(ANANKE_${upper}_INCLUDE ANANKE_${upper}_LIBRARY)
  if(ANANKE_${upper}_INCLUDE AND ANANKE_${upper}_LIBRARY AND NOT TARGET ananke::${name})
    add_library(ananke::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(ananke::${name} PROPERTIES IMPORTED_LOCATION ${ANANKE_${upper}_LIBRARY}
                          INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${ANANKE_${upper}_INCLUDE})
  endif()
endfunction()

function(ananke_nccl_version header result)
  file(STRINGS ${header} lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  list(JOIN numbers "." version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

macro(ananke_find_cuda)
  ananke_pip_folders(pip_folders)
  ananke_site_packages(pip_site_packages)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(ANANKE_NVCC nvcc HINTS ${CUDAToolkit_ROOT} ENV CUDA_PATH ${CMAKE_PREFIX_PATH}
                 PATHS /usr/local/cuda ${pip_folders} PATH_SUFFIXES bin)
    if(ANANKE_NVCC)
      set(CMAKE_CUDA_COMPILER ${ANANKE_NVCC})
    endif()
  endif()
  check_language(CUDA)
  if(ANANKE_SANITIZE)
    set(ANANKE_CUDA_MISSING "builds with sanitizers have no kernels")
  elseif(NOT CMAKE_CUDA_COMPILER)
    set(ANANKE_CUDA_MISSING "there was no working nvcc; put it in PATH or set CUDACXX, and configure again")
  else()
    set(CMAKE_CUDA_ARCHITECTURES ${ANANKE_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    ananke_cuda_library(nccl HEADER nccl.h NAMES nccl libnccl.so.2)
    ananke_cuda_library(cudnn HEADER cudnn.h NAMES cudnn libcudnn.so.9)
    # Headers only; pip's nvidia-cudnn-frontend has them in site-packages/include, beside the folder nvidia.
    find_path(ANANKE_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${CMAKE_PREFIX_PATH} ${CUDAToolkit_INCLUDE_DIRS}
              PATHS ${pip_site_packages} PATH_SUFFIXES include)
    # In the toolkit, or in its extras; pip has it in a folder of its own.
    find_path(ANANKE_CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CMAKE_PREFIX_PATH}
              PATHS ${pip_folders} PATH_SUFFIXES include extras/CUPTI/include ../extras/CUPTI/include)
    find_library(ANANKE_CUPTI_LIBRARY NAMES cupti libcupti.so.13 libcupti.so.12 HINTS ${CUDAToolkit_LIBRARY_DIR}
                 ${CMAKE_PREFIX_PATH} PATHS ${pip_folders} PATH_SUFFIXES lib lib64 ../extras/CUPTI/lib64)
    mark_as_advanced(ANANKE_CUDNN_FRONTEND_INCLUDE ANANKE_CUPTI_INCLUDE ANANKE_CUPTI_LIBRARY)
    if(NOT CUDAToolkit_FOUND OR CUDAToolkit_VERSION VERSION_LESS 12.8)
      set(ANANKE_CUDA_MISSING "it needs the CUDA toolkit 12.8 or newer, and found ${CUDAToolkit_VERSION}")
    elseif(NOT TARGET CUDA::cublasLt)
      set(ANANKE_CUDA_MISSING "there was no libcublasLt in ${CUDAToolkit_LIBRARY_DIR}")
    elseif(NOT TARGET ananke::nccl)
      set(ANANKE_CUDA_MISSING "there was no NCCL (nccl.h and libnccl.so.2); set CMAKE_PREFIX_PATH, and configure again")
    else()
      ananke_nccl_version(${ANANKE_NCCL_INCLUDE}/nccl.h ANANKE_NCCL_VERSION)
      if(ANANKE_NCCL_VERSION VERSION_LESS 2.26)
        set(ANANKE_CUDA_MISSING "it needs NCCL 2.26 or newer, and found ${ANANKE_NCCL_VERSION} in ${ANANKE_NCCL_INCLUDE}")
      endif()
    endif()
  endif()
  if(ANANKE_CUDA_MISSING STREQUAL "")
    set(ANANKE_CUDA_FOUND TRUE)
  endif()
  if(TARGET ananke::cudnn)
    set(ANANKE_CUDNN_FOUND TRUE)
  endif()
endmacro()

if(ANANKE_CUDA STREQUAL "off")
  set(ANANKE_CUDA_MISSING "it was configured with ANANKE_CUDA=off")
elseif(ANANKE_CUDA MATCHES "^(auto|on)$")
  ananke_find_cuda()
  if(ANANKE_CUDA_FOUND)
    message(STATUS "CUDA backend: toolkit ${CUDAToolkit_VERSION}, NCCL ${ANANKE_NCCL_VERSION} (${ANANKE_NCCL_LIBRARY}), "
                   "for sm_${ANANKE_CUDA_ARCHITECTURES}")
    if(NOT ANANKE_CUDNN_FOUND OR NOT ANANKE_CUDNN_FRONTEND_INCLUDE)
      message(STATUS "CUDA backend: without cuDNN's attention, for which cudnn.h and cudnn_frontend.h are needed")
    endif()
  elseif(ANANKE_CUDA STREQUAL "on")
    message(FATAL_ERROR "ANANKE_CUDA=on, but the CUDA backend cannot be built: ${ANANKE_CUDA_MISSING}")
  else()
    message(STATUS "CUDA backend: not built: ${ANANKE_CUDA_MISSING}")
  endif()
else()
  message(FATAL_ERROR "ANANKE_CUDA is '${ANANKE_CUDA}': auto, on or off")
endif()

if(ANANKE_CUDA_FOUND)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc 12 has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo -DNDEBUG")  # lines for profilers and compute-sanitizer
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)                  # one CUDA runtime for all plugins of a process
endif()

# What every library and plugin with CUDA code is set to. A file that holds no kernels is a .cpp; those that do include
# little: they are compiled twice.
function(ananke_cuda_target target)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
                        VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PRIVATE ananke_warnings)
  target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall;--expt-relaxed-constexpr>")
  # fmt 9 turns this off under nvcc and then does not compile as C++20.
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
endfunction()

# A target with instructions of compute capability 9.0a, which no other has: what it holds is for that alone. Kernels
# that spill registers, or whose products the assembler puts one after the other, do not build.
function(ananke_sm90_target target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-warn-spills,-warn-lmem-usage,-Werror>")
endfunction()
