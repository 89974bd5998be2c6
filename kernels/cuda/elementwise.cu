// Formulas: kernels/elementwise.h. The element-wise loops are in elementwise.cuh.
#include <greyhound/kernels/elementwise.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/dropout.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>

namespace greyhound::cuda {

namespace {

// 0.5 (1 + tanh(u)) is the logistic function of 2u, written with e = exp(-|2u|) as on the CPU, so that the tails keep
// their relative accuracy. 2u = x (k1 + k3 x^2); the factor log2(e) is in the constants, for exp2.
struct GeluTerms {
  float e;         // exp(-|2u|)
  float inverse;   // 1 / (1 + e)
  float logistic;  // 0.5 (1 + tanh(u))
};

constexpr float two_sqrt_two_over_pi = 1.5957691216057308f;
constexpr float cubic = 0.044715f;
constexpr float log2_e = 1.4426950408889634f;

__device__ inline GeluTerms gelu_terms(float x) {
  const float k1 = two_sqrt_two_over_pi * log2_e, k3 = k1 * cubic;
  GeluTerms terms;
  terms.e = exp2f(-fabsf(x * fmaf(k3 * x, x, k1)));
  terms.inverse = __fdividef(1.0f, 1.0f + terms.e);
  terms.logistic = x < 0.0f ? terms.e * terms.inverse : terms.inverse;
  return terms;
}

struct Gelu {
  static constexpr bool needs_rows = false;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[1][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = in[0][i] * gelu_terms(in[0][i]).logistic;
  }
};

// d/dx x s(2u) = s + x s (1 - s) 2u'. Beyond +-20, where e is 0, powers of x could only overflow. NaN stays NaN.
struct GeluGradient {
  static constexpr bool needs_rows = false;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[2][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const float x = in[1][i] < -20.0f ? -20.0f : in[1][i] > 20.0f ? 20.0f : in[1][i];
      const GeluTerms terms = gelu_terms(x);
      const float two_du = fmaf(3.0f * two_sqrt_two_over_pi * cubic * x, x, two_sqrt_two_over_pi);
      out[i] = in[0][i] * fmaf(x * two_du, terms.e * terms.inverse * terms.inverse, terms.logistic);
    }
  }
};

struct Add {
  static constexpr bool needs_rows = false;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[2][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = in[0][i] + in[1][i];
  }
};

struct AddDropped {
  static constexpr bool needs_rows = true;
  DropoutMask mask;
  template <int size>
  __device__ void operator()(std::int64_t row, int first, const float (&in)[2][size], float (&out)[size]) const {
    mask.apply(row, first, in[1], out);
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] += in[0][i];
  }
};

struct Drop {
  static constexpr bool needs_rows = true;
  DropoutMask mask;
  template <int size>
  __device__ void operator()(std::int64_t row, int first, const float (&in)[1][size], float (&out)[size]) const {
    mask.apply(row, first, in[0], out);
  }
};

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

void gelu_forward(const Context& context, const GeluForward& args) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise<T>(context, "gelu_forward", {args.input}, args.out, Gelu{});
  });
}

void gelu_backward(const Context& context, const GeluBackward& args) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise<T>(context, "gelu_backward", {args.grad_out, args.input}, args.grad_input, GeluGradient{});
  });
}

void residual_forward(const Context& context, const ResidualForward& args) {
  dispatch_fp32_bf16(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.dropout.probability > 0) {
      const AddDropped add{dropout_mask(args.dropout)};
      launch_elementwise<T>(context, "residual_forward", {args.residual, args.branch}, args.out, add);
    } else {
      launch_elementwise<T>(context, "residual_forward", {args.residual, args.branch}, args.out, Add{});
    }
  });
}

void dropout_apply(const Context& context, const DropoutApply& args) {
  if (args.dropout.probability == 0) {
    if (args.out.data != args.input.data) cuda::cast(context, {args.input, args.out});
    return;
  }
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise<T>(context, "dropout_apply", {args.input}, args.out, Drop{dropout_mask(args.dropout)});
  });
}

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
