// Matrix products: cuBLASLt, thin kernels for the rest of dimensions that its fast kernels do not take, and a plain
// tiled kernel for what it does not offer at all.
#include <greyhound/kernels/matmul.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/core/memory.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/cublaslt.h>
#include <greyhound/kernels/cuda/gelu_product.h>
#include <greyhound/kernels/matmul_choice.h>
#include <greyhound/kernels/cuda/elementwise.cuh>
#include <greyhound/kernels/cuda/thin_product.cuh>

#include <algorithm>
#include <type_traits>

namespace greyhound::cuda {

namespace {

constexpr int tile = 16;

// One block per 16 x 16 outputs, one thread each; depths are added in order. For what cuBLASLt does not offer, or not
// with one rounding: a bias with rows that do not start at 16 bytes, K = 0.
template <class T, class Out>
__global__ void __launch_bounds__(tile* tile)
    tiled_product_kernel(const Strided<T> a, const Strided<T> b, const Extent extent, const Epilogue<Out> epilogue) {
  __shared__ float tile_a[tile][tile + 1], tile_b[tile][tile + 1];
  const std::int64_t tiles_n = (extent.n + tile - 1) / tile;
  const std::int64_t row = blockIdx.x / tiles_n * tile + threadIdx.y;
  const std::int64_t column = blockIdx.x % tiles_n * tile + threadIdx.x;
  float sum = 0;
  for (std::int64_t first = 0; first < extent.k; first += tile) {
    const std::int64_t depth_a = first + threadIdx.x, depth_b = first + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < extent.m && depth_a < extent.k ? a(row, depth_a) : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = depth_b < extent.k && column < extent.n ? b(depth_b, column) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < tile; ++i) sum = fmaf(tile_a[threadIdx.y][i], tile_b[i][threadIdx.x], sum);
    __syncthreads();
  }
  if (row < extent.m && column < extent.n) epilogue.store(row, column, sum);
}

template <class T, class Out>
void tiled_product(const Context& context, const Matmul& args, const Extent& extent) {
  const std::int64_t tiles = ((extent.m + tile - 1) / tile) * ((extent.n + tile - 1) / tile);
  require(tiles < (std::int64_t{1} << 31), "matmul: out ", to_string(args.out.shape),
          " is too large for the plain CUDA product");
  tiled_product_kernel<T, Out><<<static_cast<unsigned>(tiles), dim3(tile, tile), 0, stream_of(context.stream())>>>(
      strided<T>(args.a, args.transpose_a), strided<T>(args.b, args.transpose_b), extent, Epilogue<Out>(args));
  check_launch("matmul");
}

constexpr int convert_threads = 256;

template <class From, class To>
__global__ void __launch_bounds__(convert_threads) convert_kernel(const From* from, To* to, std::int64_t n) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(convert_threads) + threadIdx.x;
  if (i < n) to[i] = narrow<To>(widen(from[i]));
}

__global__ void scalars_kernel(const float* factor, float alpha, float beta, float* scalars) {
  scalars[0] = alpha * *factor;
  scalars[1] = beta;
}

// The library's epilogue takes a bias in out's dtype alone, and reads it 16 bytes at a time.
void convert_bias(const Context& context, const ConstTensor& bias, const Tensor& converted) {
  const std::int64_t n = bias.elements();
  dispatch(bias.dtype, "matmul: bias", [&](auto from_tag) {
    dispatch(converted.dtype, "matmul: out", [&](auto to_tag) {
      using From = typename decltype(from_tag)::type;
      using To = typename decltype(to_tag)::type;
      const unsigned blocks = static_cast<unsigned>((n + convert_threads - 1) / convert_threads);
      convert_kernel<<<blocks, convert_threads, 0, stream_of(context.stream())>>>(bias.as<From>(), converted.as<To>(),
                                                                                  n);
      check_launch("matmul: bias");
    });
  });
}

// What the library leaves to do: `from` holds the values before the activation, in out or in pre_activation.
void finish(const Context& context, const Matmul& args, const Tensor& from) {
  const Tensor& out = args.out;
  if (args.activation == Activation::gelu) {
    dispatch(out.dtype, "matmul: out", [&](auto tag) {
      using T = typename decltype(tag)::type;
      launch_elementwise<T>(context, "matmul: gelu", {from}, out, Gelu{});
    });
  } else if (from.data != out.data) {
    const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * size_of(out.dtype); };
    const std::int64_t columns = out.columns();
    check(
        cudaMemcpy2DAsync(out.data, bytes(std::max(out.row_stride, columns)), from.data,
                          bytes(std::max(from.row_stride, columns)), bytes(columns),
                          static_cast<std::size_t>(out.rows()), cudaMemcpyDeviceToDevice, stream_of(context.stream())),
        "matmul: pre_activation");
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

bool aligned_rows(const ConstTensor& matrix) {
  const std::int64_t row_bytes = matrix.row_stride * static_cast<std::int64_t>(size_of(matrix.dtype));
  return is_aligned(matrix.data) && (row_bytes % 16 == 0 || matrix.rows() <= 1);
}

// The library's fast kernels for 16-bit operands want rows that start at 16 bytes, and rows whose length is a multiple
// of this: M, N or K, whichever lies along the rows of an operand or of out. Its others are several times slower, and
// round the product before they add the bias.
constexpr std::int64_t granule = thin_limit;

// What the library takes beside its own workspace: alpha and beta, and a bias in out's dtype.
constexpr std::int64_t scalar_count = 2;

bool needs_conversion(const Matmul& args) { return args.bias.dtype != args.out.dtype || !is_aligned(args.bias.data); }

// In the workspace where it has to be converted.
ConstTensor bias_of(const Context& context, const Matmul& args, Workspace& workspace) {
  if (!args.bias || !needs_conversion(args)) return args.bias;
  const Tensor converted = workspace.take(args.out.dtype, args.bias.shape);
  convert_bias(context, args.bias, converted);
  return converted;
}

// The product with its bias by the library, and the activation by a kernel of ours. False, with `out` untouched, where
// the library has no algorithm. `tuning`: times the library's algorithms instead, and keeps the best.
bool library_product(const Context& context, const Matmul& args, Workspace& workspace, bool tuning) {
  const Workspace::Scope scope(workspace);
  Product product{};
  product.a = args.a;
  product.b = args.b;
  product.from = args.out;
  product.to = args.out;
  product.transpose_a = args.transpose_a;
  product.transpose_b = args.transpose_b;
  product.alpha = args.alpha;
  product.beta = args.beta;
  product.workspace = workspace.take(DType::uint8, {static_cast<std::int64_t>(library_workspace_bytes)}).data;
  product.bias = bias_of(context, args, workspace).data;
  if (args.alpha_factor) {
    float* scalars = workspace.take(DType::fp32, {scalar_count}).as<float>();
    scalars_kernel<<<1, 1, 0, stream_of(context.stream())>>>(args.alpha_factor.as<float>(), args.alpha, args.beta,
                                                             scalars);
    check_launch("matmul: alpha_factor");
    product.scalars = scalars;
  }
  Products& products = products_of(context);
  if (args.pre_activation) product.to = args.pre_activation;
  if (!(tuning ? products.tune(context, product) : products.multiply(context, product))) return false;
  finish(context, args, product.to);
  return true;
}

// Product and activation by one kernel of ours, for which there is nothing to tune. False, with `out` untouched, where
// it is not for such a product.
bool product_with_gelu(const Context& context, const Matmul& args, Workspace& workspace, bool tuning) {
  if (!takes_gelu_product(context, args)) return false;
  if (tuning) return true;
  const Workspace::Scope scope(workspace);
  Matmul product = args;
  product.bias = bias_of(context, args, workspace);
  return gelu_product(context, product);
}

// Calls function(T{}, Out{}) with the element types of a and out.
template <class Function>
void dispatch_types(const Matmul& args, Function&& function) {
  dispatch(args.a.dtype, "matmul: a", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.out.dtype == DType::fp32) {
      function(T{}, float{});
    } else {
      function(T{}, T{});
    }
  });
}

void plain_product(const Context& context, const Matmul& args, const Extent& extent) {
  dispatch_types(
      args, [&](auto operand, auto out) { tiled_product<decltype(operand), decltype(out)>(context, args, extent); });
}

std::int64_t whole(std::int64_t extent) { return extent - extent % granule; }

Extent extent_of(const Matmul& args) {
  return {args.out.rows(), args.out.columns(), args.transpose_a ? args.a.rows() : args.a.columns()};
}

// Whether depths lie along rows.
bool rows_along_depth(const Matmul& args) { return !args.transpose_a || args.transpose_b; }

// 16-bit operands whose last rows, columns or depths can be left to kernels of ours.
bool can_split(const Matmul& args, const Extent& extent) {
  constexpr std::int64_t most = std::int64_t{1} << 30;  // the thin kernels count in int
  return args.a.dtype != DType::fp32 && std::max({extent.m, extent.n, extent.k}) < most && aligned_rows(args.a) &&
         aligned_rows(args.b) && aligned_rows(args.out) && aligned_rows(args.pre_activation);
}

template <class Void>
BasicTensor<Void> column_range(const BasicTensor<Void>& matrix, std::int64_t first, std::int64_t count) {
  if (!matrix) return matrix;
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return {static_cast<Byte*>(matrix.data) + first * static_cast<std::int64_t>(size_of(matrix.dtype)), matrix.dtype,
          Shape{matrix.rows(), count}, std::max(matrix.row_stride, matrix.columns()), matrix.device};
}

// The parts of a product that make columns or rows first .. first + count of `out`, or add up such depths.
Matmul columns_of(const Matmul& args, std::int64_t first, std::int64_t count) {
  Matmul part = args;
  part.b = args.transpose_b ? args.b.row_range(first, count) : column_range(args.b, first, count);
  part.out = column_range(args.out, first, count);
  part.pre_activation = column_range(args.pre_activation, first, count);
  if (args.bias) part.bias = args.bias.slice(first, Shape{count});
  return part;
}
Matmul rows_of(const Matmul& args, std::int64_t first, std::int64_t count) {
  Matmul part = args;
  part.a = args.transpose_a ? column_range(args.a, first, count) : args.a.row_range(first, count);
  part.out = args.out.row_range(first, count);
  if (args.pre_activation) part.pre_activation = args.pre_activation.row_range(first, count);
  return part;
}
Matmul depths_of(const Matmul& args, std::int64_t first, std::int64_t count) {
  Matmul part = args;
  part.a = args.transpose_a ? args.a.row_range(first, count) : column_range(args.a, first, count);
  part.b = args.transpose_b ? column_range(args.b, first, count) : args.b.row_range(first, count);
  return part;
}

void thin_product(const Context& context, const Matmul& args, bool thin_rows) {
  dispatch_types(args, [&](auto operand, auto out) {
    using T = decltype(operand);
    if constexpr (!std::is_same_v<T, float>) {
      cuda::thin_product<T, decltype(out)>(stream_of(context.stream()), args, extent_of(args), thin_rows);
    }
  });
}

void last_depths(const Context& context, const Matmul& args, const Tensor& partial) {
  dispatch_types(args, [&](auto operand, auto out) {
    using T = decltype(operand);
    if constexpr (!std::is_same_v<T, float>) {
      cuda::last_depths<T, decltype(out)>(stream_of(context.stream()), args, extent_of(args), partial);
    }
  });
}

void make_product(const Context& context, const Matmul& args, Workspace& workspace, bool tuning);

// All depths but the last few by the library, the others on top, and one rounding: the first sum is fp32, in `out` or
// in the workspace.
void split_depths(const Context& context, const Matmul& args, const Extent& extent, Workspace& workspace, bool tuning) {
  const std::int64_t even = whole(extent.k);
  Matmul last = depths_of(args, even, extent.k - even);
  if (even == 0) return last_depths(context, last, {});
  const Workspace::Scope scope(workspace);
  Matmul first = depths_of(args, 0, even);
  first.bias = {};
  first.activation = Activation::none;
  first.pre_activation = {};
  Tensor partial;
  if (args.out.dtype == DType::fp32) {
    last.beta = 1;
  } else {
    partial = workspace.take(DType::fp32, Shape{extent.m, extent.n});
    first.out = partial;
    first.alpha = 1;
    first.alpha_factor = {};
    first.beta = 0;
  }
  make_product(context, first, workspace, tuning);
  last_depths(context, last, partial);
}

void make_product(const Context& context, const Matmul& args, Workspace& workspace, bool tuning) {
  const Extent extent = extent_of(args);
  if (extent.m == 0 || extent.n == 0) return;
  if (extent.k == 0) return plain_product(context, args, extent);
  if (product_with_gelu(context, args, workspace, tuning)) return;

  const bool split = can_split(args, extent);
  const std::int64_t even_columns = whole(extent.n), even_rows = whole(extent.m);
  if (split && even_columns != extent.n) {
    make_product(context, columns_of(args, 0, even_columns), workspace, tuning);
    return thin_product(context, columns_of(args, even_columns, extent.n - even_columns), false);
  }
  if (split && args.transpose_a && even_rows != extent.m) {
    make_product(context, rows_of(args, 0, even_rows), workspace, tuning);
    return thin_product(context, rows_of(args, even_rows, extent.m - even_rows), true);
  }
  const bool odd_depth = extent.k % granule != 0;
  if (split && odd_depth && rows_along_depth(args)) return split_depths(context, args, extent, workspace, tuning);
  const bool rounds_once = !args.bias || args.out.dtype == DType::fp32 || (split && !odd_depth);
  if (rounds_once && library_product(context, args, workspace, tuning)) return;
  plain_product(context, args, extent);
}

}  // namespace

void matmul(const Context& context, const Matmul& args, Workspace& workspace) {
  const DeviceScope device(context);
  make_product(context, args, workspace, false);
}

void tune_matmul(const Context& context, const Matmul& args, Workspace& workspace) {
  const DeviceScope device(context);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(context.stream()), &capture), "tune_matmul");
  require(capture == cudaStreamCaptureStatusNone, "tune_matmul: cannot time anything while a CUDA graph is captured");
  make_product(context, args, workspace, true);
}

bool tune_new_matmuls(const Context& context) {
  const DeviceScope device(context);
  Products& products = products_of(context);
  const bool before = products.tunes_new();
  products.tune_new(true);
  return before;
}

void stop_tuning_new_matmuls(const Context& context, bool before) noexcept {
  context.cache<Cache>().products->tune_new(before);
}

std::size_t matmul_workspace_bytes(const Context& context, const Matmul& args) {
  const Extent extent = extent_of(args);
  if (extent.m == 0 || extent.n == 0) return 0;
  const DeviceScope device(context);
  products_of(context);  // the handle takes memory of its own, which a product in a graph capture must not
  std::size_t bytes = library_workspace_bytes + Workspace::size(DType::fp32, {scalar_count}) +
                      Workspace::size(args.out.dtype, {extent.n});
  if (args.a.dtype != DType::fp32 && args.out.dtype != DType::fp32 && rows_along_depth(args) &&
      extent.k % granule != 0 && extent.k > granule) {
    const std::int64_t rows = args.transpose_a ? whole(extent.m) : extent.m;
    bytes += Workspace::size(DType::fp32, Shape{rows, whole(extent.n)});
  }
  return bytes;
}

std::string matmul_library() { return Products::library(); }

}  // namespace greyhound::cuda
