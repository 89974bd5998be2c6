#include <greyhound/core/device_info.h>

#include <greyhound/core/cuda_runtime.h>

#include <fstream>

namespace greyhound {

namespace {

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  ...": the first word that is a number with dots.
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) return word;
  }
  return "";
}

}  // namespace

CudaDeviceInfo cuda_device_info(int index) { return cuda::device_info(index); }

CudaVersions cuda_versions() {
  CudaVersions versions = cuda::versions();
  if (versions.driver > 0) versions.driver_release = driver_release();
  return versions;
}

}  // namespace greyhound
