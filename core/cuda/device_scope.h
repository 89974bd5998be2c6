// Makes a device current for a block of code and puts back what was current before: the library never
// changes the caller's current device. Of the CUDA backend; loss/row_loss.cuh needs it.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/cuda/cuda_check.h>

namespace greyhound::cuda {

class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    changed_ = before_ != device;
    if (changed_) check(cudaSetDevice(device), "cudaSetDevice");
  }
  explicit DeviceScope(const Context& context) : DeviceScope(context.device().index) {}
  ~DeviceScope() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace greyhound::cuda
