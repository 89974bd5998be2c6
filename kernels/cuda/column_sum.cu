// Sums over rows, of a tensor and of GELU's gradient on its way to memory. Contracts: kernels/elementwise.h.
#include <greyhound/kernels/elementwise.h>

#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/column_partials.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>
#include <greyhound/kernels/cuda/gelu.cuh>

#include <algorithm>
#include <initializer_list>
#include <type_traits>

namespace greyhound::cuda {

namespace {

constexpr int sum_warps = 8, sum_threads = sum_warps * warp_size;
constexpr int turn_rows = 8;  // of one thread, added before they are added to others
constexpr int block_turn = sum_warps * turn_rows;
constexpr std::int64_t least_size = 2 * block_turn, most_blocks = 256;

// The cut follows from the number of rows alone: at most 256 blocks of rows, each of whole turns.
struct RowBlocks {
  std::int64_t size, count;
  explicit RowBlocks(std::int64_t rows)
      : size(std::max(least_size, (rows + most_blocks * block_turn - 1) / (most_blocks * block_turn) * block_turn)),
        count((rows + size - 1) / size) {}
  // At least the count of any number of rows up to this one.
  static std::int64_t bound(std::int64_t rows) { return std::min(most_blocks, (rows + least_size - 1) / least_size); }
};

// What is summed, 16 bytes of a row at a time. load() only reads, so that those of `at_once` rows are on their way
// together; registers then let `resident_blocks` work on a multiprocessor. `packed`: every row begins on 16 bytes.
template <class T, bool packed>
struct InputRows {
  using Element = T;
  using Held = Packed<T>;
  static constexpr int at_once = 4, resident_blocks = 4;
  const T* input;
  std::int64_t stride;
  __device__ Held load(std::int64_t row, int first, int columns) const {
    return load_packed(input + row * stride, first, columns, packed);
  }
  __device__ void values(const Held& held, std::int64_t, int, int, float (&out)[packed_size<T>]) const {
    unpack(held, out);
  }
};

// Makes grad_input as well; what is summed is what it was rounded to.
template <class T, bool packed>
struct GeluGradientRows {
  using Element = T;
  static constexpr int at_once = 2, resident_blocks = 3;
  struct Held {
    Packed<T> grad_out, input;
  };
  const T *grad_out, *input;
  T* grad_input;
  std::int64_t grad_out_stride, input_stride, grad_input_stride;
  __device__ Held load(std::int64_t row, int first, int columns) const {
    return {load_packed(grad_out + row * grad_out_stride, first, columns, packed),
            load_packed(input + row * input_stride, first, columns, packed)};
  }
  __device__ void values(const Held& held, std::int64_t row, int first, int columns,
                         float (&out)[packed_size<T>]) const {
    float in[2][packed_size<T>];
    unpack(held.grad_out, in[0]);
    unpack(held.input, in[1]);
    GeluGradient{}(row, first, in, out);
    store_packed(grad_input + row * grad_input_stride, first, columns, packed, out);
    unpack(pack<T>(out), out);
  }
};

// One block per block of rows and 32 packs of 16 bytes of columns; each of its warps takes 8 rows at a time. Eight
// neighbouring rows are added in fp32, everything else in fp64 and in order. Reads its operands once.
template <class Source>
__global__ void __launch_bounds__(sum_threads, Source::resident_blocks)
    partial_column_sum_kernel(const Source source, std::int64_t rows, int columns, std::int64_t rows_per_block,
                              double* partials) {
  constexpr int size = packed_size<typename Source::Element>, block_columns = warp_size * size;
  static_assert(turn_rows % Source::at_once == 0, "whole turns");
  __shared__ double shared[sum_warps][block_columns];
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  const int block_first = static_cast<int>(blockIdx.x) * block_columns, first = block_first + lane * size;
  const std::int64_t begin = blockIdx.y * rows_per_block, end = min(rows, begin + rows_per_block);
  double sums[size] = {};
  if (first < columns) {
    for (std::int64_t base = begin + warp * turn_rows; base < end; base += block_turn) {
      float run[size] = {};
#pragma unroll 1
      for (std::int64_t row = base; row < min(end, base + turn_rows); row += Source::at_once) {
        typename Source::Held held[Source::at_once];
#pragma unroll
        for (int k = 0; k < Source::at_once; ++k) {
          if (row + k < end) held[k] = source.load(row + k, first, columns);
        }
#pragma unroll
        for (int k = 0; k < Source::at_once; ++k) {
          if (row + k >= end) continue;
          float values[size];
          source.values(held[k], row + k, first, columns, values);
#pragma unroll
          for (int i = 0; i < size; ++i) run[i] += values[i];
        }
      }
#pragma unroll
      for (int i = 0; i < size; ++i) sums[i] += run[i];
    }
  }
#pragma unroll
  for (int i = 0; i < size; ++i) shared[warp][lane * size + i] = sums[i];
  __syncthreads();
  const int column = threadIdx.x;
  static_assert(block_columns <= sum_threads, "a thread for each column");
  if (column >= block_columns || block_first + column >= columns) return;
  double sum = 0;
#pragma unroll
  for (int w = 0; w < sum_warps; ++w) sum += shared[w][column];
  partials[static_cast<std::int64_t>(blockIdx.y) * columns + block_first + column] = sum;
}

// out (+)= sums over the rows of a source.
template <class Source>
void launch_sums(const Context& context, const char* name, const Source& source, std::int64_t rows,
                 std::int64_t columns, const Tensor& out, bool accumulate, Workspace& workspace) {
  require_row_sizes(1, columns, name);
  const Workspace::Scope scope(workspace);
  const RowBlocks blocks(rows);
  double* partials = workspace.take(DType::fp64, {blocks.count, columns}).template as<double>();
  const cudaStream_t stream = stream_of(context.stream());
  if (rows > 0) {
    constexpr std::int64_t block_columns = warp_size * packed_size<typename Source::Element>;
    const dim3 grid(static_cast<unsigned>((columns + block_columns - 1) / block_columns),
                    static_cast<unsigned>(blocks.count));
    partial_column_sum_kernel<<<grid, sum_threads, 0, stream>>>(source, rows, static_cast<int>(columns), blocks.size,
                                                                partials);
    check_launch(name);
  }
  add_partials(stream, name, partials, blocks.count, columns, PutSum{out.as<float>(), accumulate});
}

// Calls function(TypeTag<T>{}, std::bool_constant<packed>{}).
template <class Function>
void dispatch_packed(DType dtype, std::initializer_list<ConstTensor> tensors, Function&& function) {
  dispatch_fp32_bf16(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool packed = std::all_of(tensors.begin(), tensors.end(), rows_are_packed<T>);
    if (packed) {
      function(tag, std::true_type{});
    } else {
      function(tag, std::false_type{});
    }
  });
}

}  // namespace

std::size_t column_sum_workspace_bytes(const Context&, std::int64_t rows, std::int64_t columns) {
  return Workspace::size(DType::fp64, {RowBlocks::bound(rows), columns});
}

void column_sum(const Context& context, const ColumnSum& args, Workspace& workspace) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  if (columns == 0) return;
  const DeviceScope device(context);
  dispatch_packed(args.input.dtype, {args.input}, [&](auto tag, auto packed) {
    using T = typename decltype(tag)::type;
    const InputRows<T, packed.value> source{args.input.as<T>(), args.input.row_stride};
    launch_sums(context, "column_sum", source, rows, columns, args.out, args.accumulate, workspace);
  });
}

void gelu_backward(const Context& context, const GeluBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  if (!args.grad_bias) {
    dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      launch_elementwise<T>(context, "gelu_backward", {args.grad_out, args.input}, args.grad_input, GeluGradient{});
    });
    return;
  }
  if (columns == 0) return;
  const DeviceScope device(context);
  dispatch_packed(args.input.dtype, {args.grad_out, args.input, args.grad_input}, [&](auto tag, auto packed) {
    using T = typename decltype(tag)::type;
    const GeluGradientRows<T, packed.value> source{args.grad_out.as<T>(),   args.input.as<T>(),
                                                   args.grad_input.as<T>(), args.grad_out.row_stride,
                                                   args.input.row_stride,   args.grad_input.row_stride};
    launch_sums(context, "gelu_backward", source, rows, columns, args.grad_bias, args.accumulate_bias, workspace);
  });
}

}  // namespace greyhound::cuda
