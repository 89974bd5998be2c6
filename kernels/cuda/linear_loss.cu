#include <greyhound/kernels/linear_loss.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/class_indices.cuh>

namespace greyhound::cuda {

namespace {

constexpr int copy_threads = 128;

// One block per row. A row that does not count is not read.
template <class T>
__global__ void __launch_bounds__(copy_threads)
    copy_valid_rows_kernel(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride, int columns,
                           const IndexArguments indices) {
  const std::int64_t row = blockIdx.x;
  const bool valid = indices.any_valid(row);
  const T* source = from + row * from_stride;
  T* target = to + row * to_stride;
  const bool aligned = is_packed_aligned(source), target_aligned = is_packed_aligned(target);
  for (int first = threadIdx.x * packed_size<T>; first < columns; first += copy_threads * packed_size<T>) {
    float values[packed_size<T>] = {};
    if (valid) unpack(load_packed(source, first, columns, aligned), values);
    store_packed(target, first, columns, target_aligned, values);
  }
}

struct UpstreamArguments {
  TargetArguments targets;
  RowValues upstream;
  const float* denominator;
  float logit_scale;
  float* row_upstream;
  float* alpha;
};

constexpr int normalize_threads = 1024;

// One block: the largest factor, then what each row gets of it.
__global__ void __launch_bounds__(normalize_threads) normalize_upstream_kernel(const UpstreamArguments args) {
  const TargetArguments& targets = args.targets;
  double largest = 0;
  for (std::int64_t row = threadIdx.x; row < targets.rows; row += normalize_threads) {
    const std::int64_t target = targets.index[row];
    if (!targets.valid(target)) continue;
    largest = fmax(largest, fabs(static_cast<double>(args.upstream[row]) * targets.weight(row, target)));
  }
  __shared__ double shared[max_warps];
  largest = block_reduce(largest, 0.0, shared, [](double& a, double b) { a = fmax(a, b); });
  const double denominator = args.denominator != nullptr ? *args.denominator : 1.0;
  const bool zero = largest == 0 || denominator == 0;
  const double scale = largest * args.logit_scale / fp16_tile_scale;
  for (std::int64_t row = threadIdx.x; row < targets.rows; row += normalize_threads) {
    args.row_upstream[row] = zero ? 0.0f : static_cast<float>(args.upstream[row] / scale);
  }
  if (threadIdx.x == 0) *args.alpha = zero ? 0.0f : static_cast<float>(scale / denominator);
}

// One block: the largest sum of a row's |grad_out|.
template <class G>
__global__ void __launch_bounds__(normalize_threads)
    normalize_grad_out_kernel(const IndexArguments indices, const ValuesBeside<G> grad_out, float logit_scale,
                              float* grad_scale, float* alpha) {
  double largest = 0;
  for (std::int64_t row = threadIdx.x; row < indices.rows; row += normalize_threads) {
    double sum = 0;
    for (std::int64_t k = 0; k < indices.per_row; ++k) {
      if (indices.valid(indices.at(row, k))) sum += fabsf(grad_out.at(row, k));
    }
    largest = fmax(largest, sum);
  }
  __shared__ double shared[max_warps];
  largest = block_reduce(largest, 0.0, shared, [](double& a, double b) { a = fmax(a, b); });
  if (threadIdx.x != 0) return;
  const double scale = largest * logit_scale / fp16_tile_scale;
  *grad_scale = largest == 0 ? 0.0f : static_cast<float>(1 / scale);
  *alpha = static_cast<float>(scale);
}

constexpr int sum_threads = 128;

// One thread per column; neighbours read neighbouring columns, rows are added in order.
template <class T>
__global__ void __launch_bounds__(sum_threads)
    tile_column_sum_kernel(const T* tile, std::int64_t stride, std::int64_t rows, std::int64_t columns, float alpha,
                           const float* alpha_factor, bool accumulate, float* out) {
  const std::int64_t column = blockIdx.x * static_cast<std::int64_t>(sum_threads) + threadIdx.x;
  if (column >= columns) return;
  if (alpha_factor != nullptr) alpha *= *alpha_factor;
  double sum = 0;
#pragma unroll 8
  for (std::int64_t row = 0; row < rows; ++row) sum += widen(tile[row * stride + column]);
  out[column] = static_cast<float>((accumulate ? out[column] : 0.0) + alpha * sum);
}

}  // namespace

void copy_valid_rows(const Context& context, const CopyValidRows& args) {
  const std::int64_t rows = args.from.rows();
  require_row_sizes(rows, args.from.columns(), "copy_valid_rows");
  if (rows == 0) return;
  const DeviceScope device(context);
  dispatch(args.from.dtype, "copy_valid_rows: from", [&](auto tag) {
    using T = typename decltype(tag)::type;
    copy_valid_rows_kernel<T><<<static_cast<unsigned>(rows), copy_threads, 0, stream_of(context.stream())>>>(
        args.from.as<T>(), args.from.row_stride, args.to.as<T>(), args.to.row_stride,
        static_cast<int>(args.from.columns()),
        index_arguments(args.targets.index, args.targets.vocab, args.targets.ignore_index));
    check_launch("copy_valid_rows");
  });
}

void normalize_upstream(const Context& context, const NormalizeUpstream& args) {
  const DeviceScope device(context);
  UpstreamArguments upstream{};
  upstream.targets = target_arguments(args.targets, args.class_weights, args.row_weights);
  upstream.upstream = row_values(args.upstream);
  upstream.denominator = args.denominator.as<float>();
  upstream.logit_scale = args.logit_scale;
  upstream.row_upstream = args.row_upstream.as<float>();
  upstream.alpha = args.alpha.as<float>();
  normalize_upstream_kernel<<<1, normalize_threads, 0, stream_of(context.stream())>>>(upstream);
  check_launch("normalize_upstream");
}

void normalize_grad_out(const Context& context, const NormalizeGradOut& args) {
  const DeviceScope device(context);
  const Targets& targets = args.targets;
  dispatch(args.grad_out.dtype, "normalize_grad_out: grad_out", [&](auto tag) {
    using G = typename decltype(tag)::type;
    normalize_grad_out_kernel<G><<<1, normalize_threads, 0, stream_of(context.stream())>>>(
        index_arguments(targets.index, targets.vocab, targets.ignore_index), values_beside<G>(args.grad_out),
        args.logit_scale, args.grad_scale.as<float>(), args.alpha.as<float>());
    check_launch("normalize_grad_out");
  });
}

void tile_column_sum(const Context& context, const TileColumnSum& args) {
  const std::int64_t columns = args.tile.columns();
  if (columns == 0) return;
  const DeviceScope device(context);
  const unsigned blocks = static_cast<unsigned>((columns + sum_threads - 1) / sum_threads);
  dispatch(args.tile.dtype, "tile_column_sum: tile", [&](auto tag) {
    using T = typename decltype(tag)::type;
    tile_column_sum_kernel<T><<<blocks, sum_threads, 0, stream_of(context.stream())>>>(
        args.tile.as<T>(), args.tile.row_stride, args.tile.rows(), columns, args.alpha, args.alpha_factor.as<float>(),
        args.accumulate, args.out.as<float>());
    check_launch("tile_column_sum");
  });
}

}  // namespace greyhound::cuda
