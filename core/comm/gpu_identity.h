// Which GPU a device is. Implemented in nccl/, and by no_nccl.cpp in builds without NCCL. Internal.
#pragma once

#include <string>

namespace greyhound {

// "GPU-" and the UUID of a CUDA device: the same in every process, whatever CUDA_VISIBLE_DEVICES says.
std::string gpu_identity(int device);

}  // namespace greyhound
