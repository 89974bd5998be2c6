// Matrix products: cuBLASLt, and a plain tiled kernel for what it does not offer.
#include <greyhound/kernels/matmul.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/core/memory.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/cublaslt.h>
#include <greyhound/kernels/cuda/packed.cuh>

#include <algorithm>
#include <type_traits>

namespace greyhound::cuda {

namespace {

__device__ inline float gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

// Element (row, column) of a matrix of any orientation.
template <class T>
struct Strided {
  const T* data;
  std::int64_t row_step, column_step;
  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    return widen(data[row * row_step + column * column_step]);
  }
};

struct Extent {
  std::int64_t m, n, k;
};

template <class Out>
struct Epilogue {
  float alpha, beta;
  const float* alpha_factor;
  const void* bias;
  DType bias_dtype;
  bool gelu;
  Out* out;
  std::int64_t out_stride;
  Out* pre_activation;
  std::int64_t pre_stride;

  __device__ void store(std::int64_t row, std::int64_t column, float sum) const {
    Out& target = out[row * out_stride + column];
    float value = (alpha_factor != nullptr ? alpha * *alpha_factor : alpha) * sum;
    if (beta != 0) value += beta * widen(target);
    if (bias != nullptr) {
      switch (bias_dtype) {
        case DType::bf16: value += widen(static_cast<const bf16*>(bias)[column]); break;
        case DType::fp16: value += widen(static_cast<const fp16*>(bias)[column]); break;
        default: value += static_cast<const float*>(bias)[column];
      }
    }
    if (pre_activation != nullptr) pre_activation[row * pre_stride + column] = narrow<Out>(value);
    target = narrow<Out>(gelu ? cuda::gelu(value) : value);
  }
};

constexpr int tile = 16;

// One block per 16 x 16 outputs, one thread each; depths are added in order. For what cuBLASLt does not offer, or not
// with one rounding: odd shapes with a bias, the last columns of an odd width, K = 0.
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
  const auto strided = [](const ConstTensor& matrix, bool transpose) {
    return Strided<T>{matrix.as<T>(), transpose ? 1 : matrix.row_stride, transpose ? matrix.row_stride : 1};
  };
  Epilogue<Out> epilogue{};
  epilogue.alpha = args.alpha;
  epilogue.beta = args.beta;
  epilogue.alpha_factor = args.alpha_factor.as<float>();
  epilogue.bias = args.bias.data;
  epilogue.bias_dtype = args.bias.dtype;
  epilogue.gelu = args.activation == Activation::gelu;
  epilogue.out = args.out.as<Out>();
  epilogue.out_stride = args.out.row_stride;
  epilogue.pre_activation = args.pre_activation ? args.pre_activation.as<Out>() : nullptr;
  epilogue.pre_stride = args.pre_activation.row_stride;
  const std::int64_t tiles = ((extent.m + tile - 1) / tile) * ((extent.n + tile - 1) / tile);
  require(tiles < (std::int64_t{1} << 31), "matmul: out ", to_string(args.out.shape),
          " is too large for the plain CUDA product");
  tiled_product_kernel<T, Out><<<static_cast<unsigned>(tiles), dim3(tile, tile), 0, stream_of(context.stream())>>>(
      strided(args.a, args.transpose_a), strided(args.b, args.transpose_b), extent, epilogue);
  check_launch("matmul");
}

constexpr int elementwise_threads = 256;

unsigned elementwise_blocks(std::int64_t elements) {
  return static_cast<unsigned>(
      std::min<std::int64_t>((elements + elementwise_threads - 1) / elementwise_threads, 16384));
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    gelu_kernel(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride, std::int64_t rows,
                std::int64_t columns) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * elementwise_threads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(elementwise_threads) + threadIdx.x; i < rows * columns;
       i += step) {
    const std::int64_t row = i / columns, column = i % columns;
    to[row * to_stride + column] = narrow<T>(gelu(widen(from[row * from_stride + column])));
  }
}

template <class From, class To>
__global__ void __launch_bounds__(elementwise_threads) convert_kernel(const From* from, To* to, std::int64_t n) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(elementwise_threads) + threadIdx.x;
  if (i < n) to[i] = narrow<To>(widen(from[i]));
}

__global__ void scalars_kernel(const float* factor, float alpha, float beta, float* scalars) {
  scalars[0] = alpha * *factor;
  scalars[1] = beta;
}

// The scratch of every product, whatever its shape: a converted bias and scalars in front, the library gets the rest.
constexpr std::size_t scratch_bytes = std::size_t{32} << 20;

class Scratch {
 public:
  explicit Scratch(const Tensor& block) : next_(static_cast<char*>(block.data)), left_(block.bytes()) {}
  bool fits(std::size_t bytes) const { return rounded(bytes) <= left_ / 2; }
  void* take(std::size_t bytes) {
    void* taken = next_;
    next_ += rounded(bytes);
    left_ -= rounded(bytes);
    return taken;
  }
  void* rest() const { return next_; }
  std::size_t left() const { return left_; }

 private:
  static std::size_t rounded(std::size_t bytes) {
    return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
  }
  char* next_;
  std::size_t left_;
};

// The library's epilogue takes a bias in out's dtype alone.
void convert_bias(const Context& context, const ConstTensor& bias, const Tensor& converted) {
  const std::int64_t n = bias.elements();
  dispatch(bias.dtype, "matmul: bias", [&](auto from_tag) {
    dispatch(converted.dtype, "matmul: out", [&](auto to_tag) {
      using From = typename decltype(from_tag)::type;
      using To = typename decltype(to_tag)::type;
      const unsigned blocks = static_cast<unsigned>((n + elementwise_threads - 1) / elementwise_threads);
      convert_kernel<<<blocks, elementwise_threads, 0, stream_of(context.stream())>>>(bias.as<From>(),
                                                                                      converted.as<To>(), n);
      check_launch("matmul: bias");
    });
  });
}

// What the library leaves to do: `from` holds the values before the activation, in out or in pre_activation.
void finish(const Context& context, const Matmul& args, const Tensor& from) {
  const Tensor& out = args.out;
  const cudaStream_t stream = stream_of(context.stream());
  if (args.activation == Activation::gelu) {
    dispatch(out.dtype, "matmul: out", [&](auto tag) {
      using T = typename decltype(tag)::type;
      gelu_kernel<T><<<elementwise_blocks(out.elements()), elementwise_threads, 0, stream>>>(
          from.as<T>(), from.row_stride, out.as<T>(), out.row_stride, out.rows(), out.columns());
      check_launch("matmul: gelu");
    });
  } else if (from.data != out.data) {
    const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * size_of(out.dtype); };
    const std::int64_t columns = out.columns();
    check(cudaMemcpy2DAsync(out.data, bytes(std::max(out.row_stride, columns)), from.data,
                            bytes(std::max(from.row_stride, columns)), bytes(columns),
                            static_cast<std::size_t>(out.rows()), cudaMemcpyDeviceToDevice, stream),
          "matmul: pre_activation");
  }
}

// The library's kernels for 16-bit operands want rows that start at 16 bytes and dimensions of a multiple of this. Its
// others are several times slower, and round the product before they add the bias.
constexpr std::int64_t granule = 8;

bool aligned_rows(const ConstTensor& matrix) {
  const std::int64_t row_bytes = matrix.row_stride * static_cast<std::int64_t>(size_of(matrix.dtype));
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && (row_bytes % 16 == 0 || matrix.rows() <= 1);
}

// Whether everything but perhaps N is as those kernels want it.
bool aligned_but_for_width(const Matmul& args, const Extent& extent) {
  return extent.k % granule == 0 && aligned_rows(args.a) && aligned_rows(args.b) && aligned_rows(args.out) &&
         aligned_rows(args.pre_activation);
}

template <class Void>
BasicTensor<Void> column_range(const BasicTensor<Void>& matrix, std::int64_t first, std::int64_t count) {
  if (!matrix) return matrix;
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return {static_cast<Byte*>(matrix.data) + first * static_cast<std::int64_t>(size_of(matrix.dtype)), matrix.dtype,
          Shape{matrix.rows(), count}, std::max(matrix.row_stride, matrix.columns()), matrix.device};
}

// The part of the product that makes columns first .. first + count of `out`.
Matmul part_of(const Matmul& args, std::int64_t first, std::int64_t count) {
  Matmul part = args;
  part.b = args.transpose_b ? args.b.row_range(first, count) : column_range(args.b, first, count);
  part.out = column_range(args.out, first, count);
  part.pre_activation = column_range(args.pre_activation, first, count);
  if (args.bias) part.bias = args.bias.slice(first, Shape{count});
  return part;
}

// The product with its bias by the library, then the activation by a kernel of ours. False, with `out` untouched, where
// the library has no algorithm.
bool library_product(const Context& context, const Matmul& args, Workspace& workspace) {
  Cache& cache = cache_of(context);
  if (!cache.products) cache.products = std::make_shared<Products>();
  const Workspace::Scope scope(workspace);
  Scratch scratch(workspace.take(DType::uint8, {static_cast<std::int64_t>(scratch_bytes)}));

  Product product{};
  product.a = args.a;
  product.b = args.b;
  product.from = args.out;
  product.to = args.pre_activation ? args.pre_activation : args.out;
  product.transpose_a = args.transpose_a;
  product.transpose_b = args.transpose_b;
  product.alpha = args.alpha;
  product.beta = args.beta;
  product.bias = args.bias.data;
  if (args.bias && args.bias.dtype != args.out.dtype) {
    const std::size_t bytes = static_cast<std::size_t>(args.bias.elements()) * size_of(args.out.dtype);
    if (!scratch.fits(bytes)) return false;
    const Tensor converted(scratch.take(bytes), args.out.dtype, args.bias.shape, context.device());
    convert_bias(context, args.bias, converted);
    product.bias = converted.data;
  }
  if (args.alpha_factor) {
    float* scalars = static_cast<float*>(scratch.take(2 * sizeof(float)));
    scalars_kernel<<<1, 1, 0, stream_of(context.stream())>>>(args.alpha_factor.as<float>(), args.alpha, args.beta,
                                                             scalars);
    check_launch("matmul: alpha_factor");
    product.scalars = scalars;
  }
  product.workspace = scratch.rest();
  product.workspace_bytes = scratch.left();
  if (!cache.products->multiply(context, product)) return false;
  finish(context, args, product.to);
  return true;
}

void plain_product(const Context& context, const Matmul& args, const Extent& extent) {
  dispatch(args.a.dtype, "matmul: a", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.out.dtype == DType::fp32) {
      tiled_product<T, float>(context, args, extent);
    } else {
      tiled_product<T, T>(context, args, extent);
    }
  });
}

}  // namespace

void matmul(const Context& context, const Matmul& args, Workspace& workspace) {
  const Extent extent{args.out.rows(), args.out.columns(), args.transpose_a ? args.a.rows() : args.a.columns()};
  if (extent.m == 0 || extent.n == 0) return;
  const DeviceScope device(context);
  if (extent.k == 0) return plain_product(context, args, extent);

  const std::int64_t odd = extent.n % granule;
  const bool half = args.a.dtype != DType::fp32, aligned = aligned_but_for_width(args, extent);
  if (half && aligned && odd != 0 && extent.n > granule) {
    // An odd vocabulary: all columns but the last few at the library's full speed.
    const std::int64_t even = extent.n - odd;
    cuda::matmul(context, part_of(args, 0, even), workspace);
    plain_product(context, part_of(args, even, odd), {extent.m, odd, extent.k});
    return;
  }
  const bool rounds_once = !args.bias || args.out.dtype == DType::fp32 || (aligned && odd == 0);
  if (rounds_once && library_product(context, args, workspace)) return;
  plain_product(context, args, extent);
}

std::size_t matmul_workspace_bytes(const Context&, const Matmul& args) {
  return args.out.elements() == 0 ? 0 : scratch_bytes;
}

std::string matmul_library() { return Products::library(); }

}  // namespace greyhound::cuda
