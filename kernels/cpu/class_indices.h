// Class indices as [N, K] at full width, whatever their dtype. Internal to the CPU backend.
#pragma once

#include <greyhound/core/tensor.h>

#include <cstdint>

namespace greyhound::cpu {

struct ClassIndices {
  // index [N] or [N, K].
  ClassIndices(const ConstTensor& index, std::int64_t vocab, std::int64_t ignore_index)
      : index(index),
        per_row(index.shape.rank() == 2 ? index.columns() : 1),
        stride(index.shape.rank() == 2 ? index.row_stride : 1),
        vocab(vocab),
        ignore_index(ignore_index) {}

  std::int64_t at(std::int64_t row, std::int64_t k) const {
    const std::int64_t element = row * stride + k;
    return index.dtype == DType::int64 ? static_cast<const std::int64_t*>(index.data)[element]
                                       : static_cast<const std::int32_t*>(index.data)[element];
  }
  bool ignored(std::int64_t value) const { return value == ignore_index; }
  bool valid(std::int64_t value) const { return !ignored(value) && value >= 0 && value < vocab; }
  bool any_valid(std::int64_t row) const {
    for (std::int64_t k = 0; k < per_row; ++k) {
      if (valid(at(row, k))) return true;
    }
    return false;
  }

  ConstTensor index;
  std::int64_t per_row, stride;
  std::int64_t vocab;
  std::int64_t ignore_index;
};

// What stands beside the indices, [N] or [N, K], as fp32.
template <class T>
float value_beside(const ConstTensor& values, std::int64_t row, std::int64_t k) {
  const std::int64_t stride = values.shape.rank() == 2 ? values.row_stride : 1;
  return to_float(static_cast<const T*>(values.data)[row * stride + k]);
}

}  // namespace greyhound::cpu
