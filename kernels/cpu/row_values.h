// Targets, weights and optional arrays of one value per row, as the row kernels read and write them. Internal to the
// CPU backend.
#pragma once

#include <greyhound/kernels/cross_entropy.h>

#include <cstdint>

namespace greyhound::cpu {

inline std::int64_t target_at(const ConstTensor& index, std::int64_t row) {
  return index.dtype == DType::int64 ? static_cast<const std::int64_t*>(index.data)[row]
                                     : static_cast<const std::int32_t*>(index.data)[row];
}

inline bool is_ignored(const Targets& targets, std::int64_t target) { return target == targets.ignore_index; }
inline bool is_valid(const Targets& targets, std::int64_t target) {
  return !is_ignored(targets, target) && target >= 0 && target < targets.vocab;
}

// One element of an optional fp32 array, 1 when it is absent.
inline float value_at(const ConstTensor& array, std::int64_t at) {
  return array ? static_cast<const float*>(array.data)[at] : 1.0f;
}

// Of an array of one value, or one per row.
inline float row_value_at(const ConstTensor& array, std::int64_t row) {
  return value_at(array, array.elements() == 1 ? 0 : row);
}

// Writes one element of an optional array.
template <class T>
void put(const Tensor& array, std::int64_t at, T value) {
  if (array) static_cast<T*>(array.data)[at] = value;
}

// class_weight[y] row_weight[i]; only for valid targets.
inline float weight_at(const ConstTensor& class_weights, const ConstTensor& row_weights, std::int64_t row,
                       std::int64_t target) {
  return value_at(class_weights, target) * value_at(row_weights, row);
}

}  // namespace greyhound::cpu
