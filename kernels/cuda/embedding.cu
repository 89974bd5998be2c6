// Formulas: kernels/embedding.h.
#include <greyhound/kernels/embedding.h>

#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>
#include <greyhound/kernels/cuda/token_order.cuh>

#include <cstring>

namespace greyhound::cuda {

namespace {

constexpr int row_warps = 4;  // of a block, each at work on a row of its own

template <class T>
struct ForwardArguments {
  const std::int32_t* tokens;
  const T *token_weight, *position_weight;  // the latter from first_position on
  T* out;
  std::int64_t token_stride, position_stride, out_stride;
  unsigned rows, positions;
  int columns, vocab;
};

// One warp per row; reads a row of each table and writes one.
template <class T>
__global__ void __launch_bounds__(row_warps* warp_size) embedding_forward_kernel(const ForwardArguments<T> args) {
  constexpr int size = packed_size<T>, turn = 4;  // packs of one thread on their way at once
  const unsigned row = blockIdx.x * row_warps + threadIdx.x / warp_size;
  if (row >= args.rows) return;
  const std::int32_t token = args.tokens[row];
  const bool valid = token >= 0 && token < args.vocab;
  const T* token_row = args.token_weight + (valid ? token : 0) * args.token_stride;
  const T* position_row =
      args.position_weight == nullptr ? nullptr : args.position_weight + row % args.positions * args.position_stride;
  T* out = args.out + row * args.out_stride;
  const bool token_aligned = is_packed_aligned(token_row), position_aligned = is_packed_aligned(position_row);
  const bool out_aligned = is_packed_aligned(out);
  for (int base = threadIdx.x % warp_size * size; base < args.columns; base += turn * warp_size * size) {
    Packed<T> from_token[turn], from_position[turn];
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      const int first = base + k * warp_size * size;
      from_token[k].bits = from_position[k].bits = make_uint4(0, 0, 0, 0);
      if (first >= args.columns) continue;
      if (valid) from_token[k] = load_packed(token_row, first, args.columns, token_aligned);
      if (position_row != nullptr) {
        from_position[k] = load_packed(position_row, first, args.columns, position_aligned);
      }
    }
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      const int first = base + k * warp_size * size;
      if (first >= args.columns) continue;
      float token_values[size], position_values[size];
      unpack(from_token[k], token_values);
      unpack(from_position[k], position_values);
#pragma unroll
      for (int i = 0; i < size; ++i) token_values[i] += position_values[i];
      store_packed(out, first, args.columns, out_aligned, token_values);
    }
  }
}

constexpr int error_threads = 1024;

struct BadTokens {
  std::int64_t count, first_row;
};

__global__ void __launch_bounds__(error_threads)
    record_bad_tokens_kernel(const std::int32_t* tokens, std::int64_t rows, int vocab, ErrorWord* errors) {
  BadTokens own{0, rows};
  const BadTokens none = own;
#pragma unroll 8
  for (std::int64_t row = threadIdx.x; row < rows; row += error_threads) {
    const std::int32_t token = tokens[row];
    if (token >= 0 && token < vocab) continue;
    own.count += 1;
    own.first_row = min(own.first_row, row);
  }
  __shared__ BadTokens shared[max_warps];
  const BadTokens all = block_reduce(own, none, shared, [](BadTokens& a, const BadTokens& b) {
    a.count += b.count;
    a.first_row = min(a.first_row, b.first_row);
  });
  if (threadIdx.x != 0 || all.count == 0) return;
  if (errors->count == 0) {
    errors->first_row = all.first_row;
    errors->value = tokens[all.first_row];
  }
  errors->count += all.count;
}

// row[first .. first + size) (+)= sums, as far as the row's columns go.
template <int size>
__device__ void put_sums(float* row, int first, int columns, bool accumulate, const double (&sums)[size]) {
  float* out = row + first;
  if (is_packed_aligned(out) && first <= columns - size) {
#pragma unroll
    for (int i = 0; i < size; i += 4) {
      float4 four = accumulate ? *reinterpret_cast<const float4*>(out + i) : make_float4(0, 0, 0, 0);
      four = make_float4(static_cast<float>(four.x + sums[i]), static_cast<float>(four.y + sums[i + 1]),
                         static_cast<float>(four.z + sums[i + 2]), static_cast<float>(four.w + sums[i + 3]));
      *reinterpret_cast<float4*>(out + i) = four;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < size; ++i) {
    if (first + i < columns) out[i] = static_cast<float>(accumulate ? out[i] + sums[i] : sums[i]);
  }
}

template <int size>
__device__ void put_partial_sums(double* row, int first, int columns, const double (&sums)[size]) {
  double* out = row + first;
  const bool whole = is_packed_aligned(out) && first <= columns - size;
#pragma unroll
  for (int i = 0; i < size; i += 2) {
    if (whole) {
      *reinterpret_cast<double2*>(out + i) = make_double2(sums[i], sums[i + 1]);
      continue;
    }
    if (first + i < columns) out[i] = sums[i];
    if (first + i + 1 < columns) out[i + 1] = sums[i + 1];
  }
}

// Rows ordered by token are cut into chunks. What a chunk knows of a token whose rows reach beyond it goes to partial
// sums: place 0 for a token that was there before the chunk, 1 for one that begins in it.
constexpr int chunk_rows = 64;
constexpr int chunk_halves = chunk_rows / warp_size;

std::int64_t chunk_count(std::int64_t rows) { return (rows + chunk_rows - 1) / chunk_rows; }

template <class T>
struct BackwardArguments {
  const T* grad_out;
  TokenOrder sorted;
  double* partials;  // [chunks, 2, columns]
  float* grad_token;
  std::int64_t grad_out_stride, grad_token_stride, rows;
  int columns, slices, vocab;  // slices: warps that share the columns of a chunk
  bool accumulate;

  __device__ bool same_token(std::int64_t at, std::int32_t token) const {
    return at >= 0 && at < rows && sorted.tokens[at] == token;
  }
};

// One warp per chunk and slice of packed_size columns a lane, which walks the chunk's rows in order, eight reads on
// their way at once. Reads grad_out once; fp64 sums; a row of grad_token has one writer.
template <class T>
__global__ void __launch_bounds__(row_warps* warp_size) sum_by_token_kernel(const BackwardArguments<T> args) {
  constexpr int size = packed_size<T>, turn = 8;
  const int lane = threadIdx.x % warp_size;
  const std::int64_t task = blockIdx.x * std::int64_t{row_warps} + threadIdx.x / warp_size;
  const std::int64_t chunk = task / args.slices, begin = chunk * chunk_rows;
  if (begin >= args.rows) return;  // the whole warp
  const int count = static_cast<int>(min(std::int64_t{chunk_rows}, args.rows - begin));
  const int first = (static_cast<int>(task % args.slices) * warp_size + lane) * size;

  std::int32_t rows[chunk_halves], tokens[chunk_halves];
#pragma unroll
  for (int half = 0; half < chunk_halves; ++half) {
    const std::int64_t at = min(begin + half * warp_size + lane, args.rows - 1);
    rows[half] = args.sorted.order[at];
    tokens[half] = args.sorted.tokens[at];
  }
  double sums[size] = {};
  std::int32_t token = __shfl_sync(0xffffffffu, tokens[0], 0);
  bool from_before = args.same_token(begin - 1, token);
  const auto flush = [&](bool goes_on) {
    if (token == args.vocab || first >= args.columns) return;
    if (from_before || goes_on) {
      double* partial_sums = args.partials + (chunk * 2 + (from_before ? 0 : 1)) * args.columns;
      put_partial_sums(partial_sums, first, args.columns, sums);
    } else {
      put_sums(args.grad_token + token * args.grad_token_stride, first, args.columns, args.accumulate, sums);
    }
  };
#pragma unroll
  for (int half = 0; half < chunk_halves; ++half) {
    for (int base = 0; base < warp_size; base += turn) {
      const int left = count - half * warp_size - base;
      if (left <= 0) break;
      Packed<T> held[turn];
#pragma unroll
      for (int k = 0; k < turn; ++k) {
        const T* row = args.grad_out + __shfl_sync(0xffffffffu, rows[half], base + k) * args.grad_out_stride;
        if (k < left && first < args.columns) {
          held[k] = load_packed(row, first, args.columns, is_packed_aligned(row));
        }
      }
#pragma unroll
      for (int k = 0; k < turn; ++k) {
        const std::int32_t next = __shfl_sync(0xffffffffu, tokens[half], base + k);
        if (k >= left) break;
        if (next != token) {
          flush(false);
          token = next;
          from_before = false;
#pragma unroll
          for (double& sum : sums) sum = 0;
        }
        float values[size];
        unpack(held[k], values);
#pragma unroll
        for (int i = 0; i < size; ++i) sums[i] += values[i];
      }
    }
  }
  flush(args.same_token(begin + count, token));
}

// One thread per column and chunk: where a token begins in the chunk and goes on behind it, adds up its partial sums in
// order of chunks.
template <class T>
__global__ void __launch_bounds__(row_warps* warp_size) join_chunks_kernel(const BackwardArguments<T> args) {
  const int lane = threadIdx.x % warp_size, column_warps = (args.columns + warp_size - 1) / warp_size;
  const std::int64_t task = blockIdx.x * std::int64_t{row_warps} + threadIdx.x / warp_size;
  const std::int64_t chunk = task / column_warps, end = (chunk + 1) * chunk_rows;
  if (end >= args.rows) return;
  const std::int32_t token = args.sorted.tokens[end - 1];
  if (token == args.vocab || !args.same_token(end, token) || args.same_token(end - chunk_rows - 1, token)) return;
  std::int64_t last = chunk + 1;  // the chunk in which the token ends
  for (;; last += warp_size) {
    const bool goes_on = args.same_token((last + lane + 1) * chunk_rows, token);
    const unsigned stops = __ballot_sync(0xffffffffu, !goes_on);
    if (stops == 0) continue;
    last += __ffs(stops) - 1;
    break;
  }
  const int column = static_cast<int>(task % column_warps) * warp_size + lane;
  if (column >= args.columns) return;
  double sum = args.partials[(chunk * 2 + 1) * args.columns + column];
#pragma unroll 8
  for (std::int64_t next = chunk + 1; next <= last; ++next) sum += args.partials[next * 2 * args.columns + column];
  float& grad = args.grad_token[token * args.grad_token_stride + column];
  grad = static_cast<float>(args.accumulate ? grad + sum : sum);
}

constexpr int position_threads = 128;

// One thread per position and pack of columns, over the batch in order.
template <class T>
__global__ void __launch_bounds__(position_threads)
    sum_by_position_kernel(const T* grad_out, std::int64_t grad_out_stride, int batch, int positions, int columns,
                           int packs_per_row, float* grad_position, std::int64_t grad_position_stride,
                           bool accumulate) {
  constexpr int size = packed_size<T>, turn = 4;
  const std::int64_t task = blockIdx.x * std::int64_t{position_threads} + threadIdx.x;
  const std::int64_t position = task / packs_per_row;
  const int first = static_cast<int>(task % packs_per_row) * size;
  if (position >= positions) return;
  double sums[size] = {};
  for (int base = 0; base < batch; base += turn) {
    Packed<T> held[turn];
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      if (base + k >= batch) break;
      const T* row = grad_out + (static_cast<std::int64_t>(base + k) * positions + position) * grad_out_stride;
      held[k] = load_packed(row, first, columns, is_packed_aligned(row));
    }
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      if (base + k >= batch) break;
      float values[size];
      unpack(held[k], values);
#pragma unroll
      for (int i = 0; i < size; ++i) sums[i] += values[i];
    }
  }
  put_sums(grad_position + position * grad_position_stride, first, columns, accumulate, sums);
}

unsigned blocks_of(std::int64_t tasks, int per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

void zero_rows(cudaStream_t stream, const Tensor& tensor, std::int64_t first_row) {
  const std::int64_t rows = tensor.rows() - first_row;
  if (rows <= 0 || tensor.columns() == 0) return;
  const std::size_t width = static_cast<std::size_t>(tensor.columns()) * sizeof(float);
  if (tensor.contiguous()) {
    check(cudaMemsetAsync(tensor.row<float>(first_row), 0, width * static_cast<std::size_t>(rows), stream),
          "embedding_backward: zeros");
  } else {
    check(cudaMemset2DAsync(tensor.row<float>(first_row), static_cast<std::size_t>(tensor.row_stride) * sizeof(float),
                            0, width, static_cast<std::size_t>(rows), stream),
          "embedding_backward: zeros");
  }
}

template <class T>
void sum_tokens(cudaStream_t stream, const EmbeddingBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.tokens.elements(), columns = args.grad_token.columns(), chunks = chunk_count(rows);
  BackwardArguments<T> values{};
  values.grad_out = args.grad_out.as<T>();
  values.partials = workspace.take(DType::fp64, {chunks, 2, columns}).template as<double>();
  values.sorted = order_by_token(stream, args.tokens.as<std::int32_t>(), rows, args.vocab, workspace);
  values.grad_token = args.grad_token.as<float>();
  values.grad_out_stride = args.grad_out.row_stride;
  values.grad_token_stride = args.grad_token.row_stride;
  values.rows = rows;
  values.columns = static_cast<int>(columns);
  values.slices = static_cast<int>(blocks_of(columns, warp_size * packed_size<T>));
  values.vocab = static_cast<int>(args.vocab);
  values.accumulate = args.accumulate_token;
  sum_by_token_kernel<T><<<blocks_of(chunks * values.slices, row_warps), row_warps * warp_size, 0, stream>>>(values);
  check_launch("embedding_backward: tokens");
  const std::int64_t warps = chunks * blocks_of(columns, warp_size);
  join_chunks_kernel<T><<<blocks_of(warps, row_warps), row_warps * warp_size, 0, stream>>>(values);
  check_launch("embedding_backward: frequent tokens");
}

template <class T>
void sum_positions(cudaStream_t stream, const EmbeddingBackward& args) {
  const std::int64_t rows = args.tokens.elements(), positions = args.tokens.columns();
  const std::int64_t columns = args.grad_position.columns(), packs = blocks_of(columns, packed_size<T>);
  sum_by_position_kernel<T><<<blocks_of(positions * packs, position_threads), position_threads, 0, stream>>>(
      args.grad_out.as<T>(), args.grad_out.row_stride, static_cast<int>(rows / positions), static_cast<int>(positions),
      static_cast<int>(columns), static_cast<int>(packs), args.grad_position.as<float>(), args.grad_position.row_stride,
      args.accumulate_position);
  check_launch("embedding_backward: positions");
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  const std::int64_t rows = args.tokens.elements(), columns = args.out.columns();
  if (rows == 0) return;
  require_row_sizes(rows, std::max(columns, args.vocab), "embedding_forward");
  const DeviceScope device(context);
  const cudaStream_t stream = stream_of(context.stream());
  const std::int32_t* tokens = args.tokens.as<std::int32_t>();
  const int vocab = static_cast<int>(args.vocab);
  if (args.errors != nullptr) {
    record_bad_tokens_kernel<<<1, error_threads, 0, stream>>>(tokens, rows, vocab, args.errors);
    check_launch("embedding_forward: bad tokens");
  }
  dispatch_fp32_bf16(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ForwardArguments<T> values{};
    values.tokens = tokens;
    values.token_weight = args.token_weight.as<T>();
    values.token_stride = args.token_weight.row_stride;
    if (args.position_weight) {
      values.position_weight = args.position_weight.row<T>(args.first_position);
      values.position_stride = args.position_weight.row_stride;
    }
    values.out = args.out.as<T>();
    values.out_stride = args.out.row_stride;
    values.rows = static_cast<unsigned>(rows);
    values.positions = static_cast<unsigned>(args.tokens.columns());
    values.columns = static_cast<int>(columns);
    values.vocab = vocab;
    embedding_forward_kernel<T><<<blocks_of(rows, row_warps), row_warps * warp_size, 0, stream>>>(values);
    check_launch("embedding_forward");
  });
}

std::size_t embedding_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t, std::int64_t channels) {
  return Workspace::size(DType::fp64, {chunk_count(rows), 2, channels}) + token_order_bytes(rows);
}

void embedding_backward(const Context& context, const EmbeddingBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.tokens.elements(), columns = args.grad_token.columns();
  require_row_sizes(rows, std::max(columns, args.vocab), "embedding_backward");
  const DeviceScope device(context);
  const cudaStream_t stream = stream_of(context.stream());
  if (!args.accumulate_token) zero_rows(stream, args.grad_token, 0);
  if (args.grad_position && !args.accumulate_position) {
    zero_rows(stream, args.grad_position, rows == 0 ? 0 : args.tokens.columns());
  }
  if (rows == 0 || columns == 0) return;
  const Workspace::Scope scope(workspace);
  dispatch_fp32_bf16(args.grad_out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    sum_tokens<T>(stream, args, workspace);
    if (args.grad_position) sum_positions<T>(stream, args);
  });
}

}  // namespace greyhound::cuda
