// GELU on the device, for element-wise operators and the epilogue of products alike, which must give the same bits.
// Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/fast_math.cuh>

#include <cstdint>

namespace greyhound::cuda {

inline constexpr float gelu_two_sqrt_two_over_pi = 1.5957691216057308f;
inline constexpr float gelu_cubic = 0.044715f;
inline constexpr float gelu_log2_e = 1.4426950408889634f;

// 0.5 (1 + tanh(u)) is the logistic function of 2u, written with e = exp(-|2u|) as on the CPU, so that the tails keep
// their relative accuracy. 2u = x (k1 + k3 x^2); the factor log2(e) is in the constants, for exp2.
__device__ inline float gelu(float x) {
  const float k1 = gelu_two_sqrt_two_over_pi * gelu_log2_e, k3 = k1 * gelu_cubic;
  const float e = exp2f(-fabsf(x * fmaf(k3 * x, x, k1))), inverse = __fdividef(1.0f, 1.0f + e);
  return x * (x < 0.0f ? e * inverse : inverse);
}

// d/dx x s(2u) = s + x s (1 - s) 2u'. Beyond +-20, where e is 0, powers of x could only overflow; e is made of x
// itself, so that NaN stays NaN. Backward has a second operand to read and to convert: here the hardware's functions,
// which take e for 0 below 2^-126, leave it as fast as memory.
__device__ inline float gelu_slope(float x) {
  constexpr float k1 = gelu_two_sqrt_two_over_pi, k3 = k1 * gelu_cubic;
  const float bounded = fminf(fmaxf(x, -20.0f), 20.0f), square = bounded * bounded;
  const float e = fast_exp2(-fabsf(x * fmaf(k3 * gelu_log2_e, square, k1 * gelu_log2_e)));
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + e));
  const float tail = e * inverse, logistic = x < 0.0f ? tail : inverse;
  return fmaf(bounded * fmaf(3.0f * k3, square, k1), tail * inverse, logistic);
}

// For launch_elementwise (elementwise.cuh).
struct Gelu {
  static constexpr bool needs_rows = false;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[1][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = gelu(in[0][i]);
  }
};

struct GeluGradient {
  static constexpr bool needs_rows = false;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[2][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = in[0][i] * gelu_slope(in[1][i]);
  }
};

}  // namespace greyhound::cuda
