#include <greyhound/train/gpu_peak.h>

#include <string_view>

namespace greyhound {

namespace {

struct Peak {
  const char* name;  // the device's; with a star at the end: how it begins
  double teraflops;
};

constexpr Peak peaks[] = {
    {"NVIDIA GB200", 2500},
    {"NVIDIA B200", 2250},
    {"NVIDIA GH200 *", 989},
    {"NVIDIA H200", 989},
    {"NVIDIA H200 NVL", 835.5},
    {"NVIDIA H100 80GB HBM3", 989},  // SXM
    {"NVIDIA H100 PCIe", 756},
    {"NVIDIA H100 NVL", 835.5},
    {"NVIDIA A100-*", 312},
    {"NVIDIA A100 80GB PCIe", 312},
    {"NVIDIA A30", 165},
    {"NVIDIA A40", 149.7},
    {"NVIDIA A10", 125},
    {"NVIDIA A10G", 70},
    {"NVIDIA L40S", 362},
    {"NVIDIA L40", 181},
    {"NVIDIA L4", 121},
    {"NVIDIA RTX 6000 Ada Generation", 364.2},
    {"NVIDIA GeForce RTX 5090", 209.5},
    {"NVIDIA GeForce RTX 4090", 165.2},
    {"NVIDIA GeForce RTX 3090", 71},
};

bool is_named(std::string_view device, std::string_view name) {
  if (name.back() != '*') return device == name;
  name.remove_suffix(1);
  return device.substr(0, name.size()) == name;
}

}  // namespace

std::optional<double> bf16_peak_flops(const std::string& name) {
  if (name.find(" MIG ") != std::string::npos) return std::nullopt;  // a part of a GPU
  for (const Peak& peak : peaks) {
    if (is_named(name, peak.name)) return peak.teraflops * 1e12;
  }
  return std::nullopt;
}

}  // namespace greyhound
