// Column sums and casts. The other element-wise operators have no CUDA implementation.
#include <greyhound/kernels/elementwise.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/no_cuda/no_cuda.h>
#include <greyhound/kernels/cuda/packed.cuh>

namespace greyhound::cuda {

namespace {

// Rows that one thread adds up; the cut follows from the number of rows alone.
constexpr std::int64_t sum_rows_per_block = 128;
constexpr int sum_threads = 128;

std::int64_t sum_blocks(std::int64_t rows) { return (rows + sum_rows_per_block - 1) / sum_rows_per_block; }

// One thread per column and block of rows; neighbours read neighbouring columns.
template <class T>
__global__ void __launch_bounds__(sum_threads)
    partial_column_sum_kernel(const T* input, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                              double* partials) {
  const std::int64_t column = blockIdx.x * static_cast<std::int64_t>(sum_threads) + threadIdx.x;
  if (column >= columns) return;
  for (std::int64_t block = blockIdx.y; block * sum_rows_per_block < rows; block += gridDim.y) {
    const std::int64_t end = min(rows, (block + 1) * sum_rows_per_block);
    double sum = 0;
#pragma unroll 8
    for (std::int64_t row = block * sum_rows_per_block; row < end; ++row) sum += widen(input[row * stride + column]);
    partials[block * columns + column] = sum;
  }
}

__global__ void __launch_bounds__(sum_threads) add_partials_kernel(const double* partials, std::int64_t blocks,
                                                                   std::int64_t columns, float* out, bool accumulate) {
  const std::int64_t column = blockIdx.x * static_cast<std::int64_t>(sum_threads) + threadIdx.x;
  if (column >= columns) return;
  double sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += partials[block * columns + column];
  out[column] = static_cast<float>(accumulate ? out[column] + sum : sum);
}

constexpr int cast_threads = 256;

template <class From, class To>
__global__ void __launch_bounds__(cast_threads)
    cast_kernel(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride, std::int64_t rows,
                std::int64_t columns) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * cast_threads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(cast_threads) + threadIdx.x; i < rows * columns;
       i += step) {
    const std::int64_t row = i / columns, column = i % columns;
    to[row * to_stride + column] = narrow<To>(widen(from[row * from_stride + column]));
  }
}

}  // namespace

void gelu_forward(const Context&, const GeluForward&) { throw_no_cuda("gelu_forward"); }
void gelu_backward(const Context&, const GeluBackward&) { throw_no_cuda("gelu_backward"); }
void residual_forward(const Context&, const ResidualForward&) { throw_no_cuda("residual_forward"); }
void dropout_apply(const Context&, const DropoutApply&) { throw_no_cuda("dropout_apply"); }

std::size_t column_sum_workspace_bytes(const Context&, std::int64_t rows, std::int64_t columns) {
  return Workspace::size(DType::fp64, {sum_blocks(rows), columns});
}

void column_sum(const Context& context, const ColumnSum& args, Workspace& workspace) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns(), blocks = sum_blocks(rows);
  if (columns == 0) return;
  const DeviceScope device(context);
  const Workspace::Scope scope(workspace);
  double* partials = workspace.take(DType::fp64, {blocks, columns}).as<double>();
  const unsigned column_blocks = static_cast<unsigned>((columns + sum_threads - 1) / sum_threads);
  const cudaStream_t stream = stream_of(context.stream());
  if (rows > 0) {
    dispatch(args.input.dtype, "column_sum: input", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const dim3 grid(column_blocks, static_cast<unsigned>(std::min<std::int64_t>(blocks, 65535)));
      partial_column_sum_kernel<T>
          <<<grid, sum_threads, 0, stream>>>(args.input.as<T>(), args.input.row_stride, rows, columns, partials);
      check_launch("column_sum");
    });
  }
  add_partials_kernel<<<column_blocks, sum_threads, 0, stream>>>(partials, blocks, columns, args.out.as<float>(),
                                                                 args.accumulate);
  check_launch("column_sum: partial sums");
}

void cast(const Context& context, const Cast& args) {
  const std::int64_t elements = args.from.elements();
  if (elements == 0) return;
  const DeviceScope device(context);
  const unsigned blocks =
      static_cast<unsigned>(std::min<std::int64_t>((elements + cast_threads - 1) / cast_threads, 16384));
  dispatch(args.from.dtype, "cast: from", [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch(args.to.dtype, "cast: to", [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      cast_kernel<From, To><<<blocks, cast_threads, 0, stream_of(context.stream())>>>(
          args.from.as<From>(), args.from.row_stride, args.to.as<To>(), args.to.row_stride, args.from.rows(),
          args.from.columns());
      check_launch("cast");
    });
  });
}

}  // namespace greyhound::cuda
