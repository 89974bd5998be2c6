// Which device a run computes on.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/device_info.h>
#include <greyhound/core/stream.h>

#include <memory>
#include <string>

namespace greyhound {

// Lives as long as anything that computes with its context.
struct ComputeDevice {
  std::unique_ptr<Stream> stream;  // of a GPU: that the context enqueues on
  Context context;
  std::string description;  // for the log
  std::string why_not_gpu;  // where run.device is auto and no GPU was taken; otherwise empty
};

// `wish` is run.device: "auto", "cpu" or "cuda"; `gpu` is the one to take when it is to be one, as the CUDA runtime
// counts. Throws an Error when the wish cannot be met; auto never does.
ComputeDevice choose_device(const std::string& wish, int gpu = 0);

// "NVIDIA H200, compute capability 9.0, 139.8 GiB, driver 570.124.06 (CUDA 12.8), CUDA 12.8".
std::string describe_gpu(const CudaDeviceInfo& info, const CudaVersions& versions);

}  // namespace greyhound
