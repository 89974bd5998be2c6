// Layer norm's backward. Formulas: kernels/layernorm.h.
#include <greyhound/kernels/layernorm.h>

#include <greyhound/kernels/cuda/column_partials.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>
#include <greyhound/kernels/cuda/row_group.cuh>
#include <greyhound/kernels/cuda/tensor_core.cuh>

namespace greyhound::cuda {

namespace {

// Blocks on a multiprocessor at once.
constexpr int resident_blocks = 3;

// Rows are cut into at most as many blocks as an H200's 132 multiprocessors have at once, each with partial sums of its
// own: of grad_weight, of grad_bias and of grad_input. The cut follows from the number of rows alone.
struct RowBlocks {
  static constexpr std::int64_t least_size = 16, most_count = 132 * resident_blocks;
  std::int64_t size, count;
  explicit RowBlocks(std::int64_t rows)
      : size(std::max(least_size, (rows + most_count - 1) / most_count)), count((rows + size - 1) / size) {}
  // At least the count of any number of rows up to this one.
  static std::int64_t bound(std::int64_t rows) { return std::min(most_count, (rows + least_size - 1) / least_size); }
};

template <class T>
struct BackwardArguments {
  const T *grad_out, *input, *weight;
  const float *mean, *rstd;
  T* grad_input;
  float* partials;  // [blocks, sums, columns]
  std::int64_t grad_out_stride, input_stride, grad_input_stride, rows, rows_per_block;
  int columns, sums;  // 3, or 2 when those of grad_input are not asked for
  bool accumulate;
};

// With x' = x - mean, g = grad_out weight: the row's sums of g, g x' and x' over all lanes. The last tells what the
// stored mean lost in rounding, which is taken out of the second. weight_of(k, first, values): of the lane's pack k,
// which begins at column `first`.
template <class T, class Group, class Row, class Weight>
__device__ void row_sums(const Row& grad_out, const Row& input, int columns, float mean, const Weight& weight_of,
                         float (&sums)[3], float* shared) {
  constexpr int size = packed_size<T>;
  for (float& sum : sums) sum = 0;
  const int lane = Group::lane();
  input.each(lane, columns, [&](int k, int first, const float(&x)[size]) {
    float grad[size], weight[size];
    grad_out.at(k, first, columns, grad);
    weight_of(k, first, weight);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (!Row::whole && first + i >= columns) continue;
      const float g = grad[i] * weight[i], centered = x[i] - mean;
      sums[0] += g;
      sums[1] += g * centered;
      sums[2] += centered;
    }
  });
  Group::sum(sums, shared);
}

// grad_input (+)= rstd (g - mean(g) - xhat mean(g xhat)); takes the lane's terms of grad_weight and grad_bias to
// add(k, i, first, weight term, bias term), and what it writes, rounded, to add_written(k, first, values).
template <class T, class Group, class Row, class Weight, class Old, class AddTerms, class AddWritten>
__device__ void write_row(const Row& grad_out, const Row& input, int columns, float mean, float rstd,
                          const float (&sums)[3], const Weight& weight_of, const Old& old_of, T* grad_input,
                          AddTerms add, AddWritten add_written) {
  constexpr int size = packed_size<T>;
  const float inverse = 1.0f / static_cast<float>(columns), delta = sums[2] * inverse;
  const float mean_g = sums[0] * inverse, mean_g_xhat = (sums[1] - delta * sums[0]) * rstd * inverse;
  input.each(Group::lane(), columns, [&](int k, int first, const float(&x)[size]) {
    float grad[size], weight[size], out[size];
    grad_out.at(k, first, columns, grad);
    weight_of(k, first, weight);
    old_of(k, first, out);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const float xhat = (x[i] - mean - delta) * rstd;
      if (Row::whole || first + i < columns) add(k, i, first, grad[i] * xhat, grad[i]);
      out[i] += rstd * (grad[i] * weight[i] - mean_g - xhat * mean_g_xhat);
    }
    write_pack<T, Row::whole>(grad_input, first, columns, out);
    unpack(pack<T>(out), out);
    add_written(k, first, out);
  });
}

// What a block has in shared memory: rows on their way, of which a lane copies and reads its own packs, so that they
// need no barriers; and sums over rows of what was written to grad_input.
template <class T, int packs, int warps>
struct BackwardShared {
  static constexpr int threads = RowGroup<warps>::threads;
  static constexpr int operands = 3;                                  // grad_out, input, grad_input as it was
  static constexpr int stages = packs == 1 ? 4 : packs == 2 ? 3 : 2;  // rows of a group, the one at work among them
  static constexpr int quads = packs * packed_size<T> / 4;
  uint4 rows[stages][operands][packs][threads];
  float4 input_sums[quads][threads];
  float reduction[3 * threads / warp_size];
};

// A row of BackwardShared.
template <class T, int packs, int lanes, int threads>
struct SharedRow : RowOfPacks<SharedRow<T, packs, lanes, threads>, T, packs, lanes> {
  const uint4 (*held)[threads];  // [packs]

  __device__ explicit SharedRow(const uint4 (*rows)[threads]) : held(rows) {}
  __device__ void at(int k, int, int, float (&values)[packed_size<T>]) const {
    unpack(Packed<T>{held[k][threadIdx.x]}, values);
  }
};

// Rows of up to 4096 bf16 elements. Sums of a lane's columns take 16 registers for each of its packs.
using BackwardShapes = RowShapes<RowShape<1, 1>, RowShape<2, 1>, RowShape<3, 1>, RowShape<4, 1>, RowShape<3, 2>,
                                 RowShape<4, 2>, RowShape<3, 4>, RowShape<4, 4>>;

// One block per cut of the rows, one group of warps per row at a time. The next rows are on their way to shared memory
// while one is worked on. Each lane keeps the sums of its columns, those of grad_weight and grad_bias in registers,
// those of grad_input, where these would be too many, in shared memory; at the end the block's groups add theirs in
// order. Reads grad_out and input (and grad_input, when it accumulates) once and writes grad_input once.
template <class T, int packs, int warps>
__global__ void __launch_bounds__(RowGroup<warps>::threads, resident_blocks)
    layernorm_backward_kernel(const BackwardArguments<T> args) {
  using Group = RowGroup<warps>;
  using Shared = BackwardShared<T, packs, warps>;
  using Row = SharedRow<T, packs, Group::lanes, Group::threads>;
  constexpr int size = packed_size<T>, stages = Shared::stages;
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = Group::lane(), columns = args.columns;
  if (args.sums == 3) {
#pragma unroll
    for (int i = 0; i < Shared::quads; ++i) shared.input_sums[i][thread] = make_float4(0, 0, 0, 0);
  }
  const std::int64_t end = min(args.rows, (blockIdx.x + std::int64_t{1}) * args.rows_per_block);
  std::int64_t row = blockIdx.x * args.rows_per_block + Group::index();
  float weight_sums[packs][size] = {}, bias_sums[packs][size] = {};
  Packed<T> weight[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int first = Row::first_of(k, lane);
    weight[k].bits = first < columns ? *reinterpret_cast<const uint4*>(args.weight + first) : make_uint4(0, 0, 0, 0);
  }

  // One group of copies for each row, also where there is none.
  const auto copy_row = [&](std::int64_t at, int stage) {
    if (at < end) {
      const T* grad_out = args.grad_out + at * args.grad_out_stride;
      const T* input = args.input + at * args.input_stride;
      const T* old = args.grad_input + at * args.grad_input_stride;
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        const int first = Row::first_of(k, lane);
        if (first >= columns) continue;
        copy_async_16(&shared.rows[stage][0][k][thread], grad_out + first, true);
        copy_async_16(&shared.rows[stage][1][k][thread], input + first, true);
        if (args.accumulate) copy_async_16(&shared.rows[stage][2][k][thread], old + first, true);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int ahead = 0; ahead < stages - 1; ++ahead) copy_row(row + ahead * Group::per_block, ahead);
  float next_mean = row < end ? args.mean[row] : 0.0f, next_rstd = row < end ? args.rstd[row] : 0.0f;
  int stage = 0, free_stage = stages - 1;
#pragma unroll 1
  for (; row < end; row += Group::per_block) {
    copy_row(row + (stages - 1) * Group::per_block, free_stage);
    free_stage = stage;
    const float mean = next_mean, rstd = next_rstd;
    if (row + Group::per_block < end) {
      next_mean = args.mean[row + Group::per_block];
      next_rstd = args.rstd[row + Group::per_block];
    }
    wait_for_all_but<stages - 1>();
    const Row grad_out(shared.rows[stage][0]), input(shared.rows[stage][1]), old(shared.rows[stage][2]);
    stage = stage + 1 == stages ? 0 : stage + 1;
    const auto weight_of = [&](int k, int, float(&values)[size]) { unpack(weight[k], values); };
    float sums[3];
    row_sums<T, Group>(grad_out, input, columns, mean, weight_of, sums, shared.reduction);
    const auto old_of = [&](int k, int first, float(&values)[size]) {
      if (args.accumulate) return old.at(k, first, columns, values);
#pragma unroll
      for (float& value : values) value = 0;
    };
    write_row<T, Group>(
        grad_out, input, columns, mean, rstd, sums, weight_of, old_of, args.grad_input + row * args.grad_input_stride,
        [&](int k, int i, int, float weight_term, float bias_term) {
          weight_sums[k][i] += weight_term;
          bias_sums[k][i] += bias_term;
        },
        [&](int k, int, const float(&written)[size]) {
          if (args.sums < 3) return;
#pragma unroll
          for (int i = 0; i < size / 4; ++i) {
            float4& sums = shared.input_sums[k * size / 4 + i][thread];
            const float* terms = written + 4 * i;
            sums = make_float4(sums.x + terms[0], sums.y + terms[1], sums.z + terms[2], sums.w + terms[3]);
          }
        });
  }

  // Groups in order; each leaves its sums for the next where rows were.
  __syncthreads();
  float* const group_sums = reinterpret_cast<float*>(shared.rows);
  static_assert(2 * packs * size * Group::lanes * sizeof(float) <= sizeof shared.rows, "room for a group's sums");
  float* partials = args.partials + blockIdx.x * static_cast<std::int64_t>(args.sums) * columns;
  for (int group = 0; group < Group::per_block; ++group) {
    if (group == Group::index()) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        const int first = Row::first_of(k, lane);
        if (first >= columns) continue;
#pragma unroll
        for (int i = 0; i < size; ++i) {
          float* slot = group_sums + (2 * k * size + 2 * i) * Group::lanes + lane;
          float weight_sum = weight_sums[k][i], bias_sum = bias_sums[k][i];
          if (group > 0) {
            weight_sum = slot[0] + weight_sum;
            bias_sum = slot[Group::lanes] + bias_sum;
          }
          if (group + 1 < Group::per_block) {
            slot[0] = weight_sum;
            slot[Group::lanes] = bias_sum;
          } else {
            partials[first + i] = weight_sum;
            partials[columns + first + i] = bias_sum;
          }
        }
      }
    }
    __syncthreads();
  }
  if (args.sums < 3 || Group::index() > 0) return;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int first = Row::first_of(k, lane);
    if (first >= columns) continue;
#pragma unroll
    for (int i = 0; i < size / 4; ++i) {
      const float4* sums = shared.input_sums[k * size / 4 + i] + lane;
      float4 sum = sums[0];
      for (int group = 1; group < Group::per_block; ++group) {
        const float4 other = sums[group * Group::lanes];
        sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
      }
      *reinterpret_cast<float4*>(partials + 2 * columns + first + 4 * i) = sum;
    }
  }
}

// Rows of any length and alignment: the block's one group of warps reads them twice, and each lane keeps the sums of
// its columns in the block's partial sums.
template <class T, int warps>
__global__ void __launch_bounds__(warp_size* warps) streamed_backward_kernel(const BackwardArguments<T> args) {
  using Group = RowGroup<warps>;
  using Row = StreamedRow<T, Group::lanes>;
  constexpr int size = packed_size<T>;
  __shared__ float shared[3 * warps];
  const int lane = Group::lane(), columns = args.columns;
  float* partials = args.partials + blockIdx.x * static_cast<std::int64_t>(args.sums) * columns;
  for (int first = lane * size; first < columns; first += Group::lanes * size) {
    for (int column = first; column < min(first + size, columns); ++column) {
      for (int sum = 0; sum < args.sums; ++sum) partials[sum * columns + column] = 0;
    }
  }
  const auto weight_of = [&](int, int first, float(&values)[size]) {
    read_pack<T, false>(args.weight, first, columns, values);
  };
  const std::int64_t begin = blockIdx.x * args.rows_per_block, end = min(args.rows, begin + args.rows_per_block);
  for (std::int64_t row = begin; row < end; ++row) {
    const Row grad_out{args.grad_out + row * args.grad_out_stride}, input{args.input + row * args.input_stride};
    const float mean = args.mean[row];
    T* grad_input = args.grad_input + row * args.grad_input_stride;
    float sums[3];
    row_sums<T, Group>(grad_out, input, columns, mean, weight_of, sums, shared);
    const auto old_of = [&](int, int first, float(&values)[size]) {
      if (args.accumulate) return read_pack<T, false>(grad_input, first, columns, values);
      for (float& value : values) value = 0;
    };
    write_row<T, Group>(
        grad_out, input, columns, mean, args.rstd[row], sums, weight_of, old_of, grad_input,
        [&](int, int i, int first, float weight_term, float bias_term) {
          partials[first + i] += weight_term;
          partials[columns + first + i] += bias_term;
        },
        [&](int, int first, const float(&written)[size]) {
          if (args.sums < 3) return;
          for (int i = 0; i < size && first + i < columns; ++i) {
            partials[2 * columns + first + i] += written[i];
          }
        });
  }
}

// Of the columns of [blocks, sums, columns].
struct PutGradients {
  float *weight, *bias, *input_sums;  // all but weight: optional
  std::int64_t columns;
  bool accumulate;
  __device__ void operator()(std::int64_t column, double sum) const {
    float* const outs[3] = {weight, bias, input_sums};
    float* out = outs[column / columns];
    if (out == nullptr) return;
    out += column % columns;
    *out = static_cast<float>(accumulate ? *out + sum : sum);
  }
};

template <class T>
void launch_backward(const Context& context, const LayerNormBackward& args, const RowBlocks& blocks, float* partials) {
  BackwardArguments<T> values{};
  values.grad_out = args.grad_out.as<T>();
  values.input = args.input.as<T>();
  values.weight = args.weight.as<T>();
  values.mean = args.mean.as<float>();
  values.rstd = args.rstd.as<float>();
  values.grad_input = args.grad_input.as<T>();
  values.partials = partials;
  values.grad_out_stride = args.grad_out.row_stride;
  values.input_stride = args.input.row_stride;
  values.grad_input_stride = args.grad_input.row_stride;
  values.rows = args.input.rows();
  values.rows_per_block = blocks.size;
  values.columns = static_cast<int>(args.input.columns());
  values.sums = args.grad_input_sums ? 3 : 2;
  values.accumulate = args.accumulate_input;
  const bool whole = values.columns % packed_size<T> == 0 && rows_are_packed<T>(args.grad_out) &&
                     rows_are_packed<T>(args.input) && rows_are_packed<T>(args.weight) &&
                     rows_are_packed<T>(args.grad_input);
  dispatch_row_shape<T>(BackwardShapes{}, values.columns, whole, [&](auto shape) {
    constexpr int packs = decltype(shape)::packs, warps = decltype(shape)::warps;
    const cudaStream_t stream = stream_of(context.stream());
    const unsigned grid = static_cast<unsigned>(blocks.count);
    if constexpr (packs == 0) {
      streamed_backward_kernel<T, warps><<<grid, warp_size * warps, 0, stream>>>(values);
    } else {
      const auto kernel = layernorm_backward_kernel<T, packs, warps>;
      constexpr int shared_bytes = sizeof(BackwardShared<T, packs, warps>);
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
            "cudaFuncSetAttribute");
      kernel<<<grid, RowGroup<warps>::threads, shared_bytes, stream>>>(values);
    }
    check_launch("layernorm_backward");
  });
}

}  // namespace

std::size_t layernorm_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t channels) {
  return Workspace::size(DType::fp32, {RowBlocks::bound(rows), 3, channels});
}

void layernorm_backward(const Context& context, const LayerNormBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  if (columns == 0) return;
  require_row_sizes(rows, columns, "layernorm_backward");
  const DeviceScope device(context);
  const RowBlocks blocks(rows);
  const Workspace::Scope scope(workspace);
  const std::int64_t sums = args.grad_input_sums ? 3 : 2;
  float* partials = workspace.take(DType::fp32, {blocks.count, sums, columns}).as<float>();
  if (rows > 0) {
    dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
      launch_backward<typename decltype(tag)::type>(context, args, blocks, partials);
    });
  }
  add_partials(stream_of(context.stream()), "layernorm_backward: partial sums", partials, blocks.count, sums * columns,
               PutGradients{args.grad_weight.as<float>(), args.grad_bias.as<float>(), args.grad_input_sums.as<float>(),
                            columns, args.accumulate_weight});
}

}  // namespace greyhound::cuda
