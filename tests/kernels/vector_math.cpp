// Compiled with the flags of the CPU's kernels, so that it sees what they do to NaN and infinity.
#include <greyhound/kernels/cpu/vector_math.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace greyhound;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Distance from the exact value in units of the fp32 last place there.
double error_in_ulp(float got, double exact) {
  const double ulp = std::ldexp(1.0, std::max(-149, std::ilogb(exact) - 23));
  return std::fabs(static_cast<double>(got) - exact) / ulp;
}

// As kernels call it: in a loop that the compiler vectorises.
template <class Function>
std::vector<float> apply(Function&& function, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = function(x[i]);
  return y;
}

// Numbers of either sign over all binades between 2^-40 and the limit.
std::vector<float> sweep(float limit) {
  std::vector<float> x;
  for (std::uint32_t bits = 0x2b800000u; bits_float(bits) <= limit; bits += 9973) {
    x.push_back(bits_float(bits));
    x.push_back(-bits_float(bits));
  }
  return x;
}

}  // namespace

TEST_CASE("vec::exp: within 2 ulp wherever the result is finite, subnormal results included") {
  const std::vector<float> x = sweep(103.9f), y = apply([](float v) { return cpu::vec::exp(v); }, x);
  double worst = 0;
  float worst_at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > 88.72f) {
      continue;
    }
    const double error = error_in_ulp(y[i], std::exp(static_cast<double>(x[i])));
    if (!(error <= worst)) {
      worst = error;
      worst_at = x[i];
    }
  }
  CAPTURE(worst_at);
  CHECK(worst <= 2);
  CHECK(x.size() > 10000);
}

TEST_CASE("vec::exp: special values") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0f, -0.0f, infinity, -infinity, nan, 89.0f, 3e38f, -104.0f, -3e38f, 1e-42f, -nan};
  const std::vector<float> y = apply([](float v) { return cpu::vec::exp(v); }, x);
  CHECK(y[0] == 1);
  CHECK(y[1] == 1);
  CHECK(y[2] == infinity);
  CHECK(y[3] == 0);
  CHECK(std::isnan(y[4]));
  CHECK(y[5] == infinity);
  CHECK(y[6] == infinity);
  CHECK(y[7] == 0);
  CHECK(y[8] == 0);
  CHECK(y[9] == 1);
  CHECK(std::isnan(y[10]));
}

TEST_CASE("vec::tanh: within 4 ulp, special values") {
  const std::vector<float> x = sweep(30.0f), y = apply([](float v) { return cpu::vec::tanh(v); }, x);
  double worst = 0;
  float worst_at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = error_in_ulp(y[i], std::tanh(static_cast<double>(x[i])));
    if (!(error <= worst)) {
      worst = error;
      worst_at = x[i];
    }
  }
  CAPTURE(worst_at);
  CHECK(worst <= 4);
  CHECK(cpu::vec::tanh(infinity) == 1);
  CHECK(cpu::vec::tanh(-infinity) == -1);
  CHECK(cpu::vec::tanh(3e38f) == 1);
  CHECK(cpu::vec::tanh(1e-42f) == 1e-42f);
  CHECK(cpu::vec::tanh(-0.0f) == 0);
  CHECK(std::isnan(cpu::vec::tanh(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("kernel flags: NaN and infinity are values") {
  // Read through volatile, so that the answers are computed and not folded.
  volatile float zero = 0, huge = 3e38f;
  const float infinite = huge * 10.0f, nan = zero / zero;
  CHECK_FALSE(std::isfinite(infinite));
  CHECK(std::isinf(infinite));
  CHECK(std::isnan(nan));
  CHECK_FALSE(std::isfinite(nan));
  CHECK(nan != nan);
  CHECK_FALSE(nan < 1.0f);
  CHECK(std::isnan(infinite - infinite));
  CHECK(std::signbit(zero * -1.0f));
  // Sums are not reassociated: this one is 0 in the order written, 1 in another.
  volatile float large = 1e20f, one = 1;
  CHECK((one + large) - large == 0);
#ifdef __FAST_MATH__
  FAIL("the kernels are compiled with -ffast-math");
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
  FAIL("the kernels are compiled with -ffinite-math-only");
#endif
}

TEST_CASE("kernel flags: loops count non-finite values") {
  std::vector<float> values(1003, 1.0f);
  values[0] = infinity;
  values[500] = std::numeric_limits<float>::quiet_NaN();
  values[1002] = -infinity;
  int count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) count += std::isfinite(values[i]) ? 0 : 1;
  CHECK(count == 3);
}
