// Sums over rows. Contract: kernels/elementwise.h.
#include <greyhound/kernels/elementwise.h>

#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/column_partials.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>

namespace greyhound::cuda {

namespace {

constexpr int sum_warps = 8, sum_threads = sum_warps * warp_size;
constexpr int turn_rows = 8;  // of one thread, on their way at once
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

// One block per block of rows and 32 packs of 16 bytes of columns; each of its warps takes 8 rows at a time. Eight
// neighbouring rows are added in fp32, everything else in fp64 and in order. Reads the input once.
template <class T, bool packed>
__global__ void __launch_bounds__(sum_threads)
    partial_column_sum_kernel(const T* input, std::int64_t stride, std::int64_t rows, int columns,
                              std::int64_t rows_per_block, double* partials) {
  constexpr int size = packed_size<T>, block_columns = warp_size * size;
  __shared__ double shared[sum_warps][block_columns];
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  const int block_first = static_cast<int>(blockIdx.x) * block_columns, first = block_first + lane * size;
  const std::int64_t begin = blockIdx.y * rows_per_block, end = min(rows, begin + rows_per_block);
  double sums[size] = {};
  if (first < columns) {
    for (std::int64_t base = begin + warp * turn_rows; base < end; base += block_turn) {
      Packed<T> held[turn_rows];
#pragma unroll
      for (int k = 0; k < turn_rows; ++k) {
        held[k].bits = make_uint4(0, 0, 0, 0);
        if (base + k < end) held[k] = load_packed(input + (base + k) * stride, first, columns, packed);
      }
      float run[size] = {};
#pragma unroll
      for (int k = 0; k < turn_rows; ++k) {
        float values[size];
        unpack(held[k], values);
#pragma unroll
        for (int i = 0; i < size; ++i) run[i] += values[i];
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

struct PutSum {
  float* out;
  bool accumulate;
  __device__ void operator()(std::int64_t column, double sum) const {
    out[column] = static_cast<float>(accumulate ? out[column] + sum : sum);
  }
};

}  // namespace

std::size_t column_sum_workspace_bytes(const Context&, std::int64_t rows, std::int64_t columns) {
  return Workspace::size(DType::fp64, {RowBlocks::bound(rows), columns});
}

void column_sum(const Context& context, const ColumnSum& args, Workspace& workspace) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  if (columns == 0) return;
  require_row_sizes(1, columns, "column_sum");
  const DeviceScope device(context);
  const Workspace::Scope scope(workspace);
  const RowBlocks blocks(rows);
  double* partials = workspace.take(DType::fp64, {blocks.count, columns}).as<double>();
  const cudaStream_t stream = stream_of(context.stream());
  if (rows > 0) {
    dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      constexpr std::int64_t block_columns = warp_size * packed_size<T>;
      const dim3 grid(static_cast<unsigned>((columns + block_columns - 1) / block_columns),
                      static_cast<unsigned>(blocks.count));
      const auto kernel =
          rows_are_packed<T>(args.input) ? partial_column_sum_kernel<T, true> : partial_column_sum_kernel<T, false>;
      kernel<<<grid, sum_threads, 0, stream>>>(args.input.as<T>(), args.input.row_stride, rows,
                                               static_cast<int>(columns), blocks.size, partials);
      check_launch("column_sum");
    });
  }
  add_partials(stream, "column_sum: partial sums", partials, blocks.count, columns,
               PutSum{args.out.as<float>(), args.accumulate});
}

}  // namespace greyhound::cuda
