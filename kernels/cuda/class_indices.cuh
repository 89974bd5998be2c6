// Class indices [N] or [N, K] on the device, and what stands beside them. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/packed.cuh>
#include <greyhound/kernels/cuda/targets.cuh>

namespace greyhound::cuda {

struct IndexArguments {
  Indices index;
  std::int64_t rows, per_row, stride, vocab, ignore_index;

  __device__ std::int64_t at(std::int64_t row, std::int64_t k) const { return index[row * stride + k]; }
  __device__ bool ignored(std::int64_t index) const { return index == ignore_index; }
  __device__ bool valid(std::int64_t index) const { return !ignored(index) && index >= 0 && index < vocab; }
  __device__ bool any_valid(std::int64_t row) const {
    for (std::int64_t k = 0; k < per_row; ++k) {
      if (valid(at(row, k))) return true;
    }
    return false;
  }
};

inline IndexArguments index_arguments(const ConstTensor& index, std::int64_t vocab, std::int64_t ignore_index) {
  const bool one_per_row = index.shape.rank() == 1;
  IndexArguments args{};
  args.index = {index.data, index.dtype == DType::int64};
  args.rows = index.shape[0];
  args.per_row = one_per_row ? 1 : index.columns();
  args.stride = one_per_row ? 1 : index.row_stride;
  args.vocab = vocab;
  args.ignore_index = ignore_index;
  return args;
}

// Numbers of index's shape.
template <class G>
struct ValuesBeside {
  const G* data;
  std::int64_t stride;

  __device__ float at(std::int64_t row, std::int64_t k) const { return widen(data[row * stride + k]); }
};

template <class G>
ValuesBeside<G> values_beside(const ConstTensor& values) {
  return {values.as<G>(), values.shape.rank() == 1 ? 1 : values.row_stride};
}

}  // namespace greyhound::cuda
