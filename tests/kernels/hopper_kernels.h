// Whether the kernels with Hopper's own instructions can be expected in a graph. Needs the CUDA runtime.
#pragma once

#include <tests/backend.h>
#include <tests/cuda_graph.h>

#include <algorithm>
#include <string>
#include <vector>

namespace greyhound::test {

#if defined(GREYHOUND_CODE_FOR_90A)
inline constexpr bool has_hopper_code = true;
#else
inline constexpr bool has_hopper_code = false;
#endif

// This device and this program have them, and graphs tell their kernels' names.
inline bool has_hopper_kernels() {
  if (!has_hopper_code || cpu_as_device() || CUDART_VERSION < 12030) return false;
  int major = 0, minor = 0;
  cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
  cuda::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "cudaDeviceGetAttribute");
  return major == 9 && minor == 0;
}

// How many names have this part.
inline std::int64_t count_names(const std::vector<std::string>& names, const char* part) {
  return std::count_if(names.begin(), names.end(),
                       [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

}  // namespace greyhound::test
