// The hardware's approximations. Internal to the CUDA backend.
#pragma once

namespace greyhound::cuda {

// 2^x within 2^-22 of it; 0 below -126.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace greyhound::cuda
