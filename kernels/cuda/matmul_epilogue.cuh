// What the product kernels of our own share: operands of any orientation, and what happens to a finished sum. Internal
// to the CUDA backend.
#pragma once

#include <greyhound/kernels/matmul.h>
#include <greyhound/kernels/cuda/gelu.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

#include <cstdint>

namespace greyhound::cuda {

// Element (row, column) of a matrix of any orientation.
template <class T>
struct Strided {
  const T* data;
  std::int64_t row_step, column_step;
  __device__ const T* at(std::int64_t row, std::int64_t column) const {
    return data + row * row_step + column * column_step;
  }
  __device__ float operator()(std::int64_t row, std::int64_t column) const { return widen(*at(row, column)); }
};

template <class T>
Strided<T> strided(const ConstTensor& matrix, bool transpose) {
  return {matrix.as<T>(), transpose ? 1 : matrix.row_stride, transpose ? matrix.row_stride : 1};
}

struct Extent {
  std::int64_t m, n, k;
};

template <class Out>
struct Epilogue {
  float alpha, beta;
  const float* alpha_factor;
  const void* bias;
  DType bias_dtype;
  Activation activation;
  Out* out;
  std::int64_t out_stride;
  Out* pre_activation;
  std::int64_t pre_stride;

  explicit Epilogue(const Matmul& args)
      : alpha(args.alpha),
        beta(args.beta),
        alpha_factor(args.alpha_factor.as<float>()),
        bias(args.bias.data),
        bias_dtype(args.bias.dtype),
        activation(args.activation),
        out(args.out.as<Out>()),
        out_stride(args.out.row_stride),
        pre_activation(args.pre_activation ? args.pre_activation.as<Out>() : nullptr),
        pre_stride(args.pre_activation.row_stride) {}

  // The value before the activation; `before` is what stands in out.
  __device__ float value(std::int64_t column, float sum, float before) const {
    float value = (alpha_factor != nullptr ? alpha * *alpha_factor : alpha) * sum;
    if (beta != 0) value += beta * before;
    if (bias != nullptr) {
      switch (bias_dtype) {
        case DType::bf16: value += widen(static_cast<const bf16*>(bias)[column]); break;
        case DType::fp16: value += widen(static_cast<const fp16*>(bias)[column]); break;
        default: value += static_cast<const float*>(bias)[column];
      }
    }
    return value;
  }

  __device__ void store(std::int64_t row, std::int64_t column, float sum) const {
    Out& target = out[row * out_stride + column];
    const Out result = narrow<Out>(value(column, sum, beta != 0 ? widen(target) : 0.0f));
    if (pre_activation != nullptr) pre_activation[row * pre_stride + column] = result;
    target = activation == Activation::gelu ? narrow<Out>(gelu(widen(result))) : result;
  }

  // The same for packed_size<Out> neighbours from `first` on, of a row of `columns`, with accesses of 16 bytes.
  __device__ void store_packed(std::int64_t row, int first, int columns, const float (&sums)[packed_size<Out>]) const {
    Out* target = out + row * out_stride;
    float results[packed_size<Out>] = {};
    if (beta != 0) unpack(load_packed(target, first, columns, is_packed_aligned(target)), results);
#pragma unroll
    for (int i = 0; i < packed_size<Out>; ++i) {
      if (first + i < columns) results[i] = value(first + i, sums[i], results[i]);
    }
    Out* pre = pre_activation != nullptr ? pre_activation + row * pre_stride : nullptr;
    if (pre != nullptr) cuda::store_packed(pre, first, columns, is_packed_aligned(pre), results);
    if (activation == Activation::gelu) {
#pragma unroll
      for (float& result : results) result = gelu(widen(narrow<Out>(result)));
    }
    cuda::store_packed(target, first, columns, is_packed_aligned(target), results);
  }
};

}  // namespace greyhound::cuda
