// GELU and its slope, for element-wise operators and the epilogue of products alike, which must give the same bits.
// Internal to the CPU backend.
#pragma once

#include <greyhound/kernels/cpu/vector_math.h>

#include <cmath>

namespace greyhound::cpu {

// 0.5 (1 + tanh(u)) is the logistic function of 2u. Written with e = exp(-|2u|) it neither cancels where tanh is near
// -1 nor overflows, so that the tails of GELU keep their relative accuracy.
struct GeluTerms {
  float x;         // held to +-20, beyond which e is 0 and powers of x could only overflow
  float e;         // exp(-|2u|), u = sqrt(2 / pi) (x + 0.044715 x^3)
  float inverse;   // 1 / (1 + e)
  float logistic;  // 0.5 (1 + tanh(u))
};

inline constexpr float gelu_two_sqrt_two_over_pi = 1.5957691216057308f;
inline constexpr float gelu_cubic = 0.044715f;

inline GeluTerms gelu_terms(float input) {
  GeluTerms terms;
  terms.x = input < -20.0f ? -20.0f : input > 20.0f ? 20.0f : input;  // NaN stays NaN
  const float two_u = gelu_two_sqrt_two_over_pi * terms.x * (1.0f + gelu_cubic * terms.x * terms.x);
  terms.e = vec::exp(-std::fabs(two_u));
  terms.inverse = 1.0f / (1.0f + terms.e);
  terms.logistic = input < 0.0f ? terms.e * terms.inverse : terms.inverse;
  return terms;
}

inline float gelu(float x) { return x * gelu_terms(x).logistic; }

// d/dx x s(2u) = s + x s (1 - s) 2u'.
inline float gelu_slope(float x) {
  const GeluTerms terms = gelu_terms(x);
  const float two_du = gelu_two_sqrt_two_over_pi * (1.0f + 3.0f * gelu_cubic * terms.x * terms.x);
  return terms.logistic + terms.x * two_du * (terms.e * terms.inverse * terms.inverse);
}

}  // namespace greyhound::cpu
