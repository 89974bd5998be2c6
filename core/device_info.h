// What is known of the GPUs of this machine and of the CUDA that drives them, for people and for tables of figures.
#pragma once

#include <greyhound/core/device.h>

#include <cstdint>
#include <string>

namespace greyhound {

struct CudaDeviceInfo {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::string compute_capability() const { return std::to_string(major) + "." + std::to_string(minor); }
};

// Throws a runtime Error when there is no such device, or no CUDA in this build.
GREYHOUND_API CudaDeviceInfo cuda_device_info(int index);

// As CUDA counts: 12080 is 12.8. 0: none.
struct CudaVersions {
  int built = 0;               // the toolkit that this build was made with; 0 in a build without CUDA
  int runtime = 0;             // the run-time library found
  int driver = 0;              // the newest CUDA that the driver supports; 0: no driver
  std::string driver_release;  // the driver's own version, such as "570.124.06"; empty when unknown
};
GREYHOUND_API CudaVersions cuda_versions();

// 12080: "12.8".
inline std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace greyhound
