// What GPUs can do at most: the measure of model FLOP/s utilization (MFU).
#pragma once

#include <optional>
#include <string>

namespace greyhound {

// Dense bf16 products on tensor cores with fp32 sums, in operations per second, as NVIDIA's data sheets give them
// (without sparsity). `name` is the device's full name: variants of one chip differ. Nothing for unknown GPUs.
std::optional<double> bf16_peak_flops(const std::string& name);

}  // namespace greyhound
