// What reader and writer of safetensors share.
#pragma once

#include <greyhound/core/dtype.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace greyhound::safetensors {

struct Format {
  std::string_view name;
  std::size_t bytes;           // of one element
  std::optional<DType> dtype;  // what we can use; others are checked and passed over
};

inline constexpr Format formats[] = {
    {"F64", 8, DType::fp64},  {"F32", 4, DType::fp32},      {"F16", 2, DType::fp16},      {"BF16", 2, DType::bf16},
    {"I64", 8, DType::int64}, {"I32", 4, DType::int32},     {"U8", 1, DType::uint8},      {"BOOL", 1, std::nullopt},
    {"I8", 1, std::nullopt},  {"I16", 2, std::nullopt},     {"U16", 2, std::nullopt},     {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
};

inline const Format* find_format(std::string_view name) {
  for (const Format& format : formats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

inline const Format& format_of(DType dtype) {
  for (const Format& format : formats) {
    if (format.dtype == dtype) return format;
  }
  throw_usage("safetensors: no format for ", name_of(dtype));
}

// The limit of the reference implementation, so that a damaged length cannot ask for much memory.
inline constexpr std::uint64_t most_header_bytes = 100'000'000;

}  // namespace greyhound::safetensors
