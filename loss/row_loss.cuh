// Your own loss of rows of logits as one CUDA kernel: you say what a logit adds to the row's statistics, and what loss
// and gradient follow from them. Loads, reduction, caching of the row and the launch are here. Needs nvcc, C++17.
#pragma once

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/loss/chunked_linear_loss.h>
#include <greyhound/loss/row_statistics.h>
#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

#include <cstdint>
#include <type_traits>

namespace greyhound::loss {

namespace detail {

struct RowLossArguments {
  void* logits;
  std::int64_t stride, first_row;
  float* row_loss;
  int columns;
  int cached_packs;  // packs of 16 bytes at the row's beginning that are kept in shared memory
  bool gradients;
};

// Loads per thread in flight before the first is used.
inline constexpr int row_loss_loads = 4;

// One block per row: reads it once, and writes it once where gradients are wanted; what does not fit in shared memory
// is read twice. Which thread adds which columns in which order, and the tree in which threads are combined, follow
// from V and the dtype alone, not from alignment: the same bits in every run.
template <class T, class Functor>
__global__ void __launch_bounds__(1024) row_loss_kernel(const RowLossArguments args, const Functor functor) {
  using Statistics = typename Functor::Statistics;
  constexpr int size = cuda::packed_size<T>;
  extern __shared__ uint4 greyhound_row_cache[];
  // Raw bytes, since shared memory takes no constructors.
  __shared__ __align__(16) unsigned char reduction[cuda::max_warps * sizeof(Statistics)];

  const std::int64_t row = args.first_row + blockIdx.x;
  T* const logits = static_cast<T*>(args.logits) + blockIdx.x * args.stride;
  const bool aligned = cuda::is_packed_aligned(logits);
  const int columns = args.columns;
  const int packs = (columns + size - 1) / size;
  const int step = static_cast<int>(blockDim.x);

  Statistics statistics = functor.none();
  for (int base = static_cast<int>(threadIdx.x); base < packs; base += row_loss_loads * step) {
    cuda::Packed<T> loaded[row_loss_loads];
#pragma unroll
    for (int j = 0; j < row_loss_loads; ++j) {
      const int pack = base + j * step;
      if (pack < packs) loaded[j] = cuda::load_packed(logits, pack * size, columns, aligned);
    }
#pragma unroll
    for (int j = 0; j < row_loss_loads; ++j) {
      const int pack = base + j * step;
      if (pack >= packs) break;
      if (pack < args.cached_packs) greyhound_row_cache[pack] = loaded[j].bits;
      float values[size];
      cuda::unpack(loaded[j], values);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if (pack * size + i < columns) functor.add(statistics, values[i], row, pack * size + i);
      }
    }
  }
  statistics = cuda::block_reduce(statistics, functor.none(), reinterpret_cast<Statistics*>(reduction),
                                  [&](Statistics& a, const Statistics& b) { functor.combine(a, b); });

  if (threadIdx.x == 0) args.row_loss[blockIdx.x] = functor.loss(statistics, row);
  if (!args.gradients) return;
  // Each thread overwrites the packs that it read.
  for (int pack = static_cast<int>(threadIdx.x); pack < packs; pack += step) {
    const cuda::Packed<T> loaded = pack < args.cached_packs ? cuda::Packed<T>{greyhound_row_cache[pack]}
                                                            : cuda::load_packed(logits, pack * size, columns, aligned);
    float values[size];
    cuda::unpack(loaded, values);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (pack * size + i < columns) values[i] = functor.gradient(statistics, values[i], row, pack * size + i);
    }
    cuda::store_packed(logits, pack * size, columns, aligned, values);
  }
}

template <class T, class Functor>
void launch_row_loss(const Context& context, RowLossArguments args, std::int64_t rows, const Functor& functor) {
  const auto kernel = row_loss_kernel<T, Functor>;
  int most = 0;
  cuda::check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device().index),
              "cudaDeviceGetAttribute");
  const std::size_t reduction = cuda::max_warps * sizeof(typename Functor::Statistics);
  const cuda::RowLaunch launch =
      cuda::row_launch(args.columns, sizeof(T), static_cast<std::size_t>(most) - reduction, args.gradients);
  args.cached_packs = launch.cached_packs;
  if (launch.shared_bytes + reduction > 48 * 1024) {
    cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(launch.shared_bytes)),
                "cudaFuncSetAttribute");
  }
  kernel<<<static_cast<unsigned>(rows), static_cast<unsigned>(launch.threads), launch.shared_bytes,
           cuda::stream_of(context.stream())>>>(args, functor);
  cuda::check_launch("row_loss");
}

}  // namespace detail

// Writes tile.row_loss and, where tile.gradients, overwrites tile.logits with the gradient; enqueues one kernel on the
// context's stream, so it may be captured in a graph. Serves as the callback of chunked_linear_loss:
//
//   loss::chunked_linear_loss(context, plan, inputs,
//       [&](const Context& context, const loss::LogitsTile& tile) { loss::row_loss(context, tile, functor); }, ...);
//
// or for any matrix of logits: row_loss(context, {logits, row_loss, first_row, gradients}, functor). logits [N, V]
// fp32, bf16 or fp16, any row stride and alignment; row_loss [N] fp32, dense. The fastest rows begin at multiples of 16
// bytes.
//
// The functor is copied to the device as an argument of the kernel, so it holds numbers and pointers to device memory:
//
//   struct Functor {
//     using Statistics = ...;  // trivially copyable, a multiple of 4 bytes, at most 256
//     __device__ Statistics none() const;                                 // of no logits: neutral in combine
//     __device__ void add(Statistics&, float logit, std::int64_t row, int column) const;
//     __device__ void combine(Statistics&, const Statistics& other) const;  // adds `other` to the first
//     __device__ float loss(const Statistics&, std::int64_t row) const;
//     __device__ float gradient(const Statistics&, float logit, std::int64_t row, int column) const;  // d loss/d logit
//   };
//
// `row` is the row of the call (tile.first_row and up), `column` the class; each logit is added once and asked for its
// gradient once, with the statistics of the whole row. Ready-made statistics, and bases that leave only `loss` and
// `gradient` to be written, are in loss/row_statistics.h. NaN and infinite logits reach the functor as they are, and
// its results are stored as they are. Throws a usage Error where the tile is not on the context's CUDA device or has
// other dtypes or shapes.
template <class Functor>
void row_loss(const Context& context, const LogitsTile& tile, const Functor& functor) {
  using Statistics = typename Functor::Statistics;
  static_assert(std::is_trivially_copyable_v<Statistics> && std::is_trivially_copyable_v<Functor>,
                "statistics and functor are copied between threads as bytes");
  static_assert(sizeof(Statistics) % 4 == 0 && sizeof(Statistics) <= 256, "whole 32-bit words, at most 64 of them");
  static_assert(alignof(Statistics) <= 16, "statistics are kept at multiples of 16 bytes");
  const Tensor& logits = tile.logits;
  const std::int64_t rows = logits.rows(), columns = logits.columns();
  require(context.device().is_cuda(), "row_loss: expected a context on CUDA, got one on ", to_string(context.device()));
  require_tensor(tile.row_loss, "row_loss: row_loss", DType::fp32, Shape{rows});
  for (const Tensor* tensor : {&logits, &tile.row_loss}) {
    require(tensor->device == context.device(), "row_loss: a tensor is on ", to_string(tensor->device),
            ", the context runs on ", to_string(context.device()));
  }
  cuda::require_row_sizes(rows, columns, "row_loss");
  if (rows == 0) return;

  const cuda::DeviceScope device(context);
  detail::RowLossArguments args{};
  args.logits = logits.data;
  args.stride = logits.row_stride;
  args.first_row = tile.first_row;
  args.row_loss = tile.row_loss.as<float>();
  args.columns = static_cast<int>(columns);
  args.gradients = tile.gradients;
  dispatch(logits.dtype, "row_loss: logits",
           [&](auto tag) { detail::launch_row_loss<typename decltype(tag)::type>(context, args, rows, functor); });
}

}  // namespace greyhound::loss
