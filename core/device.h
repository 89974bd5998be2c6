// Where memory lives and kernels run.
#pragma once

#include <greyhound/core/export.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace greyhound {

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // the GPU's number as the CUDA runtime counts; 0 on the CPU

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {Kind::cuda, index}; }
  constexpr bool is_cpu() const { return kind == Kind::cpu; }
  constexpr bool is_cuda() const { return kind == Kind::cuda; }
  constexpr bool operator==(const Device& other) const { return kind == other.kind && index == other.index; }
  constexpr bool operator!=(const Device& other) const { return !(*this == other); }
};

// "cpu" or "cuda:1".
inline std::string to_string(Device device) { return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index); }

// How many CUDA devices can be used now: 0 without a CUDA build, a driver or a GPU. Never throws.
GREYHOUND_API int cuda_device_count();

// Why cuda_device_count() is 0, as one line for people ("this build has no CUDA backend; ...").
GREYHOUND_API std::string cuda_unavailable_reason();

}  // namespace greyhound
