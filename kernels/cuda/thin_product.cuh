// The parts of a 16-bit product that cuBLASLt's fast kernels do not take: the last up to 7 rows, columns or depths of a
// dimension that is no multiple of 8. Sums in fp32 in a fixed order; no atomics. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/cuda/matmul_epilogue.cuh>

namespace greyhound::cuda {

// Extents of fewer than this many; all such kernels hold one sum for each.
constexpr int thin_limit = 8;
constexpr int most_thin = thin_limit - 1;

// A product of one wide and one thin operand: sum(w, t) = sum over depths of wide(w, depth) * thin(t, depth).
// `thin_rows` says that t is a row of out and w a column; else w is the row.
template <class T>
struct ThinProduct {
  Strided<T> wide, thin;  // (w, depth), (t, depth)
  std::int64_t width, depth;
  int count;  // of t; at most most_thin
  bool thin_rows;
};

template <class T, class Out>
__device__ void store_thin(const ThinProduct<T>& product, const Epilogue<Out>& epilogue, std::int64_t w, int t,
                           float sum) {
  epilogue.store(product.thin_rows ? t : w, product.thin_rows ? w : t, sum);
}

constexpr int warp_lanes = 32;
constexpr int dot_threads = 128, dot_rows = 4;  // dot_rows of the wide operand for each warp

// Depths of the wide operand are neighbours, its rows start at 16 bytes. A warp reads dot_rows of them, 8 depths a
// lane, and the thin operand (which stays in the caches) once for all of them. Reads the wide operand once.
template <class T, class Out>
__global__ void __launch_bounds__(dot_threads)
    thin_dot_kernel(const ThinProduct<T> product, const Epilogue<Out> epilogue) {
  constexpr int pack_size = packed_size<T>;
  const int lane = threadIdx.x % warp_lanes;
  const std::int64_t warp = (blockIdx.x * static_cast<std::int64_t>(dot_threads) + threadIdx.x) / warp_lanes;
  const std::int64_t first_w = warp * dot_rows;
  if (first_w >= product.width) return;
  const T* rows[dot_rows];
#pragma unroll
  for (int r = 0; r < dot_rows; ++r) rows[r] = product.wide.at(min(first_w + r, product.width - 1), 0);
  const int depth = static_cast<int>(product.depth);
  const bool thin_packed = product.thin.column_step == 1;

  float sums[dot_rows][most_thin] = {};
  for (int first = lane * pack_size; first < depth; first += warp_lanes * pack_size) {
    Packed<T> wide[dot_rows];
#pragma unroll
    for (int r = 0; r < dot_rows; ++r) wide[r] = load_packed(rows[r], first, depth, true);
#pragma unroll
    for (int t = 0; t < most_thin; ++t) {
      if (t >= product.count) break;
      float thin[pack_size] = {};
      if (thin_packed) {
        const T* row = product.thin.at(t, 0);
        unpack(load_packed(row, first, depth, is_packed_aligned(row)), thin);
      } else {
#pragma unroll
        for (int i = 0; i < pack_size; ++i) thin[i] = first + i < depth ? product.thin(t, first + i) : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < dot_rows; ++r) {
        float values[pack_size];
        unpack(wide[r], values);
#pragma unroll
        for (int i = 0; i < pack_size; ++i) sums[r][t] = fmaf(values[i], thin[i], sums[r][t]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < dot_rows; ++r) {
#pragma unroll
    for (int t = 0; t < most_thin; ++t) {
#pragma unroll
      for (int step = warp_lanes / 2; step > 0; step /= 2) {
        sums[r][t] += __shfl_xor_sync(0xffffffffu, sums[r][t], step);
      }
      // Every lane has the sum; each stores one of them.
      if (lane == r * most_thin + t && t < product.count && first_w + r < product.width) {
        store_thin(product, epilogue, first_w + r, t, sums[r][t]);
      }
    }
  }
}

constexpr int outer_threads = 512, outer_packs = 4;  // a block's columns: outer_packs * packed_size

// The w of the wide operand are neighbours, its depths start at 16 bytes. A thread adds up every 128th depth for 8
// neighbours; lanes, then warps are added in a fixed order. Reads the wide operand once.
template <class T, class Out>
__global__ void __launch_bounds__(outer_threads)
    thin_outer_kernel(const ThinProduct<T> product, const Epilogue<Out> epilogue) {
  constexpr int pack_size = packed_size<T>, depth_lanes = outer_threads / outer_packs,
                warps = outer_threads / warp_lanes, block_width = outer_packs * pack_size;
  __shared__ float shared[warps][most_thin][block_width];
  const int pack = threadIdx.x % outer_packs, lane = threadIdx.x % warp_lanes, warp = threadIdx.x / warp_lanes;
  const int block_first = static_cast<int>(blockIdx.x) * block_width, first = block_first + pack * pack_size;
  const int width = static_cast<int>(product.width);

  float sums[most_thin][pack_size] = {};
  if (first < width) {
#pragma unroll 4
    for (std::int64_t depth = threadIdx.x / outer_packs; depth < product.depth; depth += depth_lanes) {
      float values[pack_size];
      unpack(load_packed(product.wide.at(0, depth), first, width, true), values);
#pragma unroll
      for (int t = 0; t < most_thin; ++t) {
        if (t >= product.count) break;
        const float factor = product.thin(t, depth);
#pragma unroll
        for (int i = 0; i < pack_size; ++i) sums[t][i] = fmaf(values[i], factor, sums[t][i]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < most_thin; ++t) {
#pragma unroll
    for (int i = 0; i < pack_size; ++i) {
#pragma unroll
      for (int step = outer_packs; step < warp_lanes; step *= 2) {
        sums[t][i] += __shfl_xor_sync(0xffffffffu, sums[t][i], step);
      }
      if (lane < outer_packs) shared[warp][t][pack * pack_size + i] = sums[t][i];
    }
  }
  __syncthreads();
  const int t = threadIdx.x / block_width, column = threadIdx.x % block_width;
  if (t >= product.count || block_first + column >= width) return;
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += shared[i][t][column];
  store_thin(product, epilogue, block_first + column, t, sum);
}

constexpr int depth_threads = 128, depth_rows = 8;

// The depths behind those of a product that is finished in fp32: out = epilogue(partial + sum of up to 7 depths),
// rounded once. A thread holds its columns of b and goes down depth_rows rows. Reads the partial sums and writes out
// once.
template <class T, class Out>
__global__ void __launch_bounds__(depth_threads)
    last_depths_kernel(const Strided<T> a, const Strided<T> b, std::int64_t rows, int columns, int count,
                       const float* partial, std::int64_t partial_stride, const Epilogue<Out> epilogue) {
  constexpr int pack_size = packed_size<Out>, block_width = depth_threads * pack_size;
  const int blocks_across = (columns + block_width - 1) / block_width;
  const int first =
      (static_cast<int>(blockIdx.x % blocks_across) * depth_threads + static_cast<int>(threadIdx.x)) * pack_size;
  if (first >= columns) return;
  float factors[most_thin][pack_size];
#pragma unroll
  for (int t = 0; t < most_thin; ++t) {
#pragma unroll
    for (int i = 0; i < pack_size; ++i) factors[t][i] = t < count && first + i < columns ? b(t, first + i) : 0.0f;
  }
  const std::int64_t first_row = blockIdx.x / blocks_across * static_cast<std::int64_t>(depth_rows);
  const std::int64_t end = min(first_row + depth_rows, rows);
#pragma unroll 2
  for (std::int64_t row = first_row; row < end; ++row) {
    float sums[pack_size] = {};
    if (partial != nullptr) {
#pragma unroll
      for (int i = 0; i < pack_size; i += packed_size<float>) {
        float values[packed_size<float>];
        unpack(load_packed(partial + row * partial_stride, first + i, columns, true), values);
#pragma unroll
        for (int j = 0; j < packed_size<float>; ++j) sums[i + j] = values[j];
      }
    }
#pragma unroll
    for (int t = 0; t < most_thin; ++t) {
      if (t >= count) break;
      const float factor = a(row, t);
#pragma unroll
      for (int i = 0; i < pack_size; ++i) sums[i] = fmaf(factor, factors[t][i], sums[i]);
    }
    epilogue.store_packed(row, first, columns, sums);
  }
}

// Rows or columns of out: `args` and `extent` are those of the thin part alone.
template <class T, class Out>
void thin_product(cudaStream_t stream, const Matmul& args, const Extent& extent, bool thin_rows) {
  const Strided<T> a = strided<T>(args.a, args.transpose_a), b = strided<T>(args.b, !args.transpose_b);
  ThinProduct<T> product{};
  product.wide = thin_rows ? b : a;
  product.thin = thin_rows ? a : b;
  product.width = thin_rows ? extent.n : extent.m;
  product.count = static_cast<int>(thin_rows ? extent.m : extent.n);
  product.depth = extent.k;
  product.thin_rows = thin_rows;
  const Epilogue<Out> epilogue(args);
  const auto blocks = [&](std::int64_t width) { return static_cast<unsigned>((product.width + width - 1) / width); };
  if (product.wide.column_step == 1) {
    thin_dot_kernel<T, Out><<<blocks(dot_threads / warp_lanes * dot_rows), dot_threads, 0, stream>>>(product, epilogue);
  } else {
    thin_outer_kernel<T, Out><<<blocks(outer_packs * packed_size<T>), outer_threads, 0, stream>>>(product, epilogue);
  }
  check_launch("matmul: the last rows or columns");
}

// out = epilogue(partial + a x b): `args` are those of the last depths alone; partial [M, N] fp32, or nullptr.
template <class T, class Out>
void last_depths(cudaStream_t stream, const Matmul& args, const Extent& extent, const Tensor& partial) {
  constexpr std::int64_t block_width = depth_threads * packed_size<Out>;
  const std::int64_t blocks = (extent.n + block_width - 1) / block_width * ((extent.m + depth_rows - 1) / depth_rows);
  last_depths_kernel<T, Out><<<static_cast<unsigned>(blocks), depth_threads, 0, stream>>>(
      strided<T>(args.a, args.transpose_a), strided<T>(args.b, args.transpose_b), extent.m, static_cast<int>(extent.n),
      static_cast<int>(extent.k), partial.as<float>(), partial.row_stride, Epilogue<Out>(args));
  check_launch("matmul: the last depths");
}

}  // namespace greyhound::cuda
