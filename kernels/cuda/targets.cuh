// Targets of rows and their weights on the device. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cross_entropy.h>

#include <cstdint>

namespace greyhound::cuda {

// Class indices of int32 or int64, read at full width.
struct Indices {
  const void* data;
  bool wide;

  __device__ std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
};

struct TargetArguments {
  Indices index;
  std::int64_t rows, vocab, ignore_index;
  const float* class_weights;
  const float* row_weights;

  __device__ bool ignored(std::int64_t target) const { return target == ignore_index; }
  __device__ bool valid(std::int64_t target) const { return !ignored(target) && target >= 0 && target < vocab; }
  // class_weight[y] row_weight[i]; only for valid targets.
  __device__ float weight(std::int64_t row, std::int64_t target) const {
    const float by_class = class_weights != nullptr ? class_weights[target] : 1.0f;
    return row_weights != nullptr ? by_class * row_weights[row] : by_class;
  }
};

inline TargetArguments target_arguments(const Targets& targets, const ConstTensor& class_weights = {},
                                        const ConstTensor& row_weights = {}) {
  TargetArguments args{};
  args.index = {targets.index.data, targets.index.dtype == DType::int64};
  args.rows = targets.index.elements();
  args.vocab = targets.vocab;
  args.ignore_index = targets.ignore_index;
  args.class_weights = static_cast<const float*>(class_weights.data);
  args.row_weights = static_cast<const float*>(row_weights.data);
  return args;
}

// One fp32 value, or one per row; 1 when absent.
struct RowValues {
  const float* data;
  bool per_row;

  __device__ float operator[](std::int64_t row) const { return data != nullptr ? data[per_row ? row : 0] : 1.0f; }
};

inline RowValues row_values(const ConstTensor& values) { return {values.as<float>(), values.elements() != 1}; }

}  // namespace greyhound::cuda
