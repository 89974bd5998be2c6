// exp and tanh that the compiler vectorises: branch-free, no table, no call. Internal to the CPU backend.
#pragma once

#include <greyhound/core/dtype.h>

#include <cmath>
#include <cstdint>

namespace greyhound::cpu::vec {

// Becomes one instruction where the processor has it, and stays two vector ones where not (std::fma would be a call).
inline float mul_add(float a, float b, float c) { return a * b + c; }

// e^x in fp32, within 2 ulp for finite results; 0 below -103.98, +inf above 88.73, NaN for NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2, ln 2 in two parts so that r is exact to fp32; e^r by its Taylor
// polynomial of degree 7, whose remainder is under 2^-27 there. 2^n is applied in two halves, so that results down
// into the subnormal numbers come out right.
inline float exp(float x) {
  const float clamped = x < -110.0f ? -110.0f : x > 90.0f ? 90.0f : x;  // NaN stays NaN: both comparisons are false
  const float magic = 12582912.0f;                                      // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504088896341f + magic;
  const float n = shifted - magic;
  float r = mul_add(n, -0.693145751953125f, clamped);
  r = mul_add(n, -1.428606820309417e-6f, r);
  float p = 1.9841270e-4f;
  p = mul_add(p, r, 1.3888889e-3f);
  p = mul_add(p, r, 8.3333333e-3f);
  p = mul_add(p, r, 4.1666667e-2f);
  p = mul_add(p, r, 1.6666667e-1f);
  p = mul_add(p, r, 0.5f);
  p = mul_add(p * r, r, r) + 1.0f;
  const std::int32_t exponent = static_cast<std::int32_t>(float_bits(shifted)) - 0x4B400000;
  const std::int32_t half = exponent >> 1;
  const float scale_low = bits_float(static_cast<std::uint32_t>(half + 127) << 23);
  const float scale_high = bits_float(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  const float result = p * scale_low * scale_high;
  return x != x ? x : result;
}

// tanh(x) for |x| < 0.35, where forms with e^2x cancel: its odd Taylor polynomial of degree 11.
inline float tanh_near_zero(float x) {
  const float s = x * x;
  float p = -1382.0f / 155925.0f;
  p = mul_add(p, s, 62.0f / 2835.0f);
  p = mul_add(p, s, -17.0f / 315.0f);
  p = mul_add(p, s, 2.0f / 15.0f);
  p = mul_add(p, s, -1.0f / 3.0f);
  return mul_add(p * s, x, x);
}

// tanh(x) in fp32, within 4 ulp. Near 0, where 1 - 2 / (e^2x + 1) cancels, an odd Taylor polynomial.
inline float tanh(float x) {
  const float magnitude = std::fabs(x);
  const float e = vec::exp(2.0f * (magnitude > 10.0f ? 10.0f : magnitude));
  const float large = 1.0f - 2.0f / (e + 1.0f);
  const float small = vec::tanh_near_zero(x);
  const float result = std::copysign(magnitude < 0.35f ? small : large, x);  // tanh(-0) is -0
  return x != x ? x : result;
}

}  // namespace greyhound::cpu::vec
