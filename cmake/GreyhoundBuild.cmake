# Build settings of Greyhound's own targets. Nothing here reaches a project that links them.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(GREYHOUND_CCACHE ccache)
mark_as_advanced(GREYHOUND_CCACHE)
if(PROJECT_IS_TOP_LEVEL AND GREYHOUND_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GREYHOUND_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${GREYHOUND_CCACHE})
endif()

# `#include <greyhound/core/tensor.h>` works in the tree as it does after installation: a link to the source root.
set(GREYHOUND_INCLUDE_DIR ${CMAKE_CURRENT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${GREYHOUND_INCLUDE_DIR})
file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${GREYHOUND_INCLUDE_DIR}/greyhound SYMBOLIC)
set(GREYHOUND_GENERATED_DIR ${CMAKE_CURRENT_BINARY_DIR}/generated)

# Never -ffast-math: NaN and infinity are values here. These two only say that nobody reads errno or the
# floating-point exception flags, without which loops over exp or a division are not vectorised.
set(GREYHOUND_CPU_MATH_FLAGS -fno-math-errno -fno-trapping-math)
if(GREYHOUND_NATIVE)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-march=native GREYHOUND_HAVE_MARCH_NATIVE)
  if(GREYHOUND_HAVE_MARCH_NATIVE)
    list(APPEND GREYHOUND_CPU_MATH_FLAGS -march=native)
  endif()
endif()

# C++20, warnings, hidden symbols, sanitizers: for every target of ours.
function(greyhound_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_17)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
  if(GREYHOUND_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(GREYHOUND_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
  if(GREYHOUND_BUILD_FUZZERS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  endif()
endfunction()

# A library of one layer: greyhound_add_library(core) makes target greyhound_core and its alias greyhound::core. The
# program's own layers are STATIC whatever BUILD_SHARED_LIBS says: they export nothing.
function(greyhound_add_library name)
  add_library(greyhound_${name} ${ARGN})
  add_library(greyhound::${name} ALIAS greyhound_${name})
  set_target_properties(greyhound_${name} PROPERTIES EXPORT_NAME ${name})
  greyhound_configure_target(greyhound_${name})
  target_include_directories(greyhound_${name} PUBLIC
    $<BUILD_INTERFACE:${GREYHOUND_INCLUDE_DIR}> $<BUILD_INTERFACE:${GREYHOUND_GENERATED_DIR}>
    $<INSTALL_INTERFACE:include>)
endfunction()

# Lines of the summary that configuring ends with.
function(greyhound_note name state)
  set_property(GLOBAL APPEND PROPERTY GREYHOUND_SUMMARY "${name}|${state}")
endfunction()

function(greyhound_print_summary)
  message(STATUS "")
  message(STATUS "Greyhound ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
  get_property(lines GLOBAL PROPERTY GREYHOUND_SUMMARY)
  foreach(line IN LISTS lines)
    string(REPLACE "|" ";" parts "${line}")
    list(GET parts 0 name)
    list(GET parts 1 state)
    string(LENGTH "${name}" length)
    math(EXPR pad "14 - ${length}")
    string(REPEAT " " ${pad} spaces)
    message(STATUS "  ${name}${spaces}${state}")
  endforeach()
  message(STATUS "")
endfunction()
