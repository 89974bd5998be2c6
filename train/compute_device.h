// Which device a run computes on.
#pragma once

#include <greyhound/core/context.h>

#include <string>

namespace greyhound {

struct ComputeDevice {
  Context context;
  std::string description;  // for the log
  std::string why_not_gpu;  // where run.device is auto and no GPU was taken; otherwise empty
};

// `wish` is run.device: "auto", "cpu" or "cuda". Throws a usage Error when the wish cannot be met; auto never does.
ComputeDevice choose_device(const std::string& wish);

}  // namespace greyhound
