#include <greyhound/core/dtype.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace greyhound;

namespace {

// A format with `digits` significant bits, exponents from `smallest` on and a largest finite value. Rounds in double,
// where fp32 values and their halfway points are exact; nearbyint rounds to nearest even.
struct Format {
  int digits, smallest;
  double largest;
};
constexpr Format bf16_format{8, -126, 3.3895313892515355e38};
constexpr Format fp16_format{11, -14, 65504.0};

double rounded(const Format& format, double value) {
  if (std::isnan(value) || std::isinf(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), format.smallest);
  const double unit = std::ldexp(1.0, exponent - format.digits + 1);
  const double result = std::nearbyint(value / unit) * unit;
  return std::fabs(result) > format.largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : result;
}

// Sign, exponent and mantissa read by hand.
double decoded(int exponent_bits, int mantissa_bits, std::uint32_t bits) {
  const double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

template <class T>
void check_all_patterns(int exponent_bits, int mantissa_bits) {
  int wrong_values = 0, wrong_round_trips = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const T value{static_cast<std::uint16_t>(bits)};
    const double exact = decoded(exponent_bits, mantissa_bits, bits);
    wrong_values += !same(to_float(value), exact);
    // A signalling NaN comes back quiet; everything else with its own bits.
    const std::uint32_t quiet = 1u << (mantissa_bits - 1);
    wrong_round_trips += from_float<T>(to_float(value)).bits != (std::isnan(exact) ? bits | quiet : bits);
  }
  CHECK(wrong_values == 0);
  CHECK(wrong_round_trips == 0);
}

template <class T>
void check_rounding(const Format& format) {
  int wrong = 0;
  std::uint32_t first_wrong = 0;
  const auto check = [&](std::uint32_t bits) {
    const float value = bits_float(bits);
    if (same(to_float(from_float<T>(value)), rounded(format, value))) return;
    if (wrong++ == 0) first_wrong = bits;
  };
  // Around every value of the upper 16 bits: it, its neighbours, the halfway point of either format, and near it.
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u, 0x7fffu, 0x8000u,
                              0x8001u, 0xc000u, 0xf000u, 0xffffu}) {
      check(high << 16 | low);
    }
  }
  for (std::uint32_t i = 0; i < 1000000; ++i) check(i * 2654435761u);
  CAPTURE(first_wrong);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("bf16 and fp16: all 65536 patterns convert exactly and come back") {
  SUBCASE("bf16") { check_all_patterns<bf16>(8, 7); }
  SUBCASE("fp16") { check_all_patterns<fp16>(5, 10); }
}

TEST_CASE("bf16 and fp16: narrowing rounds to nearest even, subnormal numbers and overflow included") {
  SUBCASE("bf16") { check_rounding<bf16>(bf16_format); }
  SUBCASE("fp16") { check_rounding<fp16>(fp16_format); }
}

TEST_CASE("fp16: the edge of its range") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(to_float(from_float<fp16>(65504.0f)) == 65504.0f);
  CHECK(to_float(from_float<fp16>(65519.0f)) == 65504.0f);
  CHECK(to_float(from_float<fp16>(65520.0f)) == infinity);
  CHECK(to_float(from_float<fp16>(-65520.0f)) == -infinity);
  CHECK(to_float(from_float<fp16>(0x1p-24f)) == 0x1p-24f);
  CHECK(to_float(from_float<fp16>(0x1p-25f)) == 0);           // halfway to 0, which is even
  CHECK(to_float(from_float<fp16>(0x1.8p-24f)) == 0x1p-23f);  // halfway to the even neighbour
  CHECK(from_float<fp16>(-0x1p-30f).bits == 0x8000);
  CHECK(std::isnan(to_float(from_float<fp16>(std::nanf("")))));
  CHECK(std::isnan(to_float(from_float<fp16>(bits_float(0x7f800001)))));  // a NaN whose upper bits are infinity's
}

TEST_CASE("bf16: NaN, infinity and overflow") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(to_float(from_float<bf16>(infinity)) == infinity);
  CHECK(to_float(from_float<bf16>(-infinity)) == -infinity);
  CHECK(to_float(from_float<bf16>(std::numeric_limits<float>::max())) == infinity);
  CHECK(std::isnan(to_float(from_float<bf16>(bits_float(0x7f800001)))));
  CHECK(std::isnan(to_float(from_float<bf16>(bits_float(0xffffffff)))));
}

TEST_CASE("dtypes: sizes, names, element types, dispatch") {
  CHECK(size_of(DType::fp32) == 4);
  CHECK(size_of(DType::bf16) == 2);
  CHECK(size_of(DType::fp16) == 2);
  CHECK(size_of(DType::fp64) == 8);
  CHECK(size_of(DType::int32) == 4);
  CHECK(size_of(DType::int64) == 8);
  CHECK(size_of(DType::uint8) == 1);
  CHECK(std::string(name_of(DType::bf16)) == "bf16");
  CHECK(dtype_of<fp16> == DType::fp16);
  CHECK(dtype_of<std::int64_t> == DType::int64);
  CHECK(dtype_of<std::uint8_t> == DType::uint8);

  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    CHECK(dispatch(dtype, "test", [](auto tag) { return dtype_of<typename decltype(tag)::type>; }) == dtype);
  }
  for (DType dtype : {DType::int32, DType::int64}) {
    CHECK(dispatch_index(dtype, "test", [](auto tag) { return dtype_of<typename decltype(tag)::type>; }) == dtype);
  }
  CHECK_THROWS_WITH_AS(dispatch(DType::int32, "logits", [](auto) {}), "logits: expected fp32, bf16 or fp16, got int32",
                       Error);
  CHECK_THROWS_WITH_AS(dispatch_index(DType::fp32, "targets", [](auto) {}),
                       "targets: expected int32 or int64, got fp32", Error);
}
