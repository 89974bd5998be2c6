#include <greyhound/core/comm/gpu_identity.h>

#include <greyhound/core/cuda/cuda_check.h>

#include <cstdio>

namespace greyhound {

std::string gpu_identity(int device) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  // As nvidia-smi writes it.
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(properties.uuid.bytes[i]) & 0xFFu);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace greyhound
