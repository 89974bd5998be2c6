# The CUDA language, once for the whole project: which GPUs the code is compiled for, and warnings.

find_package(CUDAToolkit 12.0 REQUIRED QUIET)  # its variables, in this folder's scope

# 8.0 (A100) to 12.0 (RTX 50), each where this compiler knows it. 90a is Hopper with its own instructions.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(architectures 80 86 89 90a)
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND architectures 100 120)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPUs to compile for")
endif()
enable_language(CUDA)

# Static libraries take the static runtime, of which a program has one. Shared ones share the shared runtime: with the
# static one each would keep a copy with a current device and errors of its own.
set(GREYHOUND_CUDART cudart_static)
set(GREYHOUND_CUDA_RUNTIME Static)
if(BUILD_SHARED_LIBS)
  set(GREYHOUND_CUDART cudart)
  set(GREYHOUND_CUDA_RUNTIME Shared)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY ${GREYHOUND_CUDA_RUNTIME})
