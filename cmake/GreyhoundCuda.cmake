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
