// Element types of tensors, the 16-bit floating-point formats, and run-time dispatch on a dtype.
#pragma once

#include <greyhound/core/error.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define GREYHOUND_HOST_DEVICE __host__ __device__
#else
#define GREYHOUND_HOST_DEVICE
#endif

namespace greyhound {

enum class DType : std::uint8_t { fp32, bf16, fp16, fp64, int32, int64, uint8 };

// Storage of a bfloat16: the upper half of an IEEE binary32. Conversion rounds to nearest even and
// keeps NaN a NaN. Same bits as __nv_bfloat16.
struct bf16 {
  std::uint16_t bits;
};

// Storage of an IEEE binary16. Same bits as __half.
struct fp16 {
  std::uint16_t bits;
};

inline std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bits_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Branch-free on purpose: loops over these conversions are vectorised by the compiler.
inline float to_float(bf16 value) { return bits_float(static_cast<std::uint32_t>(value.bits) << 16); }
inline float to_float(float value) { return value; }

inline float to_float(fp16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  // Moving the exponent by 2^112 turns normal and subnormal numbers alike into binary32 (exactly).
  const float scaled = bits_float(magnitude << 13) * 0x1p112f;
  const std::uint32_t finite = float_bits(scaled);
  const std::uint32_t special = 0x7f800000u | (magnitude << 13);
  return bits_float(sign | (magnitude >= 0x7c00u ? special : finite));
}

template <class T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline double from_float<double>(float value) {
  return value;
}

template <>
inline bf16 from_float<bf16>(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return bf16{static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

template <>
inline fp16 from_float<fp16>(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: rebias the exponent, round the 13 dropped bits to nearest even.
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 puts the unit of the sum at 2^-24, so the addition itself rounds.
  const std::uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and more round to infinity
  result = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x3ffu)) : result;
  return fp16{static_cast<std::uint16_t>(sign | result)};
}

// Bytes of one element.
inline std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return 4;
    case DType::bf16: return 2;
    case DType::fp16: return 2;
    case DType::fp64: return 8;
    case DType::int32: return 4;
    case DType::int64: return 8;
    case DType::uint8: return 1;
  }
  return 0;
}

inline const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
    case DType::fp64: return "fp64";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
    case DType::uint8: return "uint8";
  }
  return "unknown dtype";
}

// The DType of a C++ element type: dtype_of<bf16> == DType::bf16.
template <class T>
constexpr DType dtype_of_other() {
  static_assert(sizeof(T) == 0, "not the element type of a tensor");
  return DType::uint8;
}
template <class T>
inline constexpr DType dtype_of = dtype_of_other<T>();
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::uint8;
template <>
inline constexpr DType dtype_of<float> = DType::fp32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<fp16> = DType::fp16;
template <>
inline constexpr DType dtype_of<double> = DType::fp64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;

template <class T>
struct TypeTag {
  using type = T;
};

// Calls function(TypeTag<T>{}) with T = float, bf16 or fp16 for a floating-point dtype of matrices.
// `what` names the argument in the error that any other dtype gets.
template <class Function>
decltype(auto) dispatch(DType dtype, const char* what, Function&& function) {
  switch (dtype) {
    case DType::fp32: return function(TypeTag<float>{});
    case DType::bf16: return function(TypeTag<bf16>{});
    case DType::fp16: return function(TypeTag<fp16>{});
    default: throw_usage(what, ": expected fp32, bf16 or fp16, got ", name_of(dtype));
  }
}

// The same for integer dtypes: T = int32_t or int64_t.
template <class Function>
decltype(auto) dispatch_index(DType dtype, const char* what, Function&& function) {
  switch (dtype) {
    case DType::int32: return function(TypeTag<std::int32_t>{});
    case DType::int64: return function(TypeTag<std::int64_t>{});
    default: throw_usage(what, ": expected int32 or int64, got ", name_of(dtype));
  }
}

}  // namespace greyhound
