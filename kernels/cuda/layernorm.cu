// Layer norm's forward, alone and after a residual addition. Formulas: kernels/layernorm.h.
#include <greyhound/kernels/layernorm.h>

#include <greyhound/kernels/cuda/dropout.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>
#include <greyhound/kernels/cuda/row_group.cuh>

namespace greyhound::cuda {

namespace {

template <class T>
struct ForwardArguments {
  const T *input, *weight, *bias;
  T* out;
  float *mean, *rstd;
  std::int64_t input_stride, out_stride, rows;
  int columns;
  float eps;
};

// What a fused residual addition needs besides: input is the residual, `sum` gets residual + dropout(branch).
template <class T>
struct BranchArguments {
  const T* branch;
  T* sum;
  std::int64_t branch_stride, sum_stride;
  bool drops;
  DropoutMask mask;
};

// The sum is normalised as it is stored, rounded: backward sees no other.
template <class T, class Row, class Group>
__device__ void add_branch(const ForwardArguments<T>& args, const BranchArguments<T>& branch, std::int64_t row,
                           Row& held) {
  constexpr int size = packed_size<T>;
  const int lane = Group::lane();
  const T* branch_row = branch.branch + row * branch.branch_stride;
  T* sum_row = branch.sum + row * branch.sum_stride;
  held.each(lane, args.columns, [&](int k, int first, float(&values)[size]) {
    float added[size];
    read_pack<T, Row::whole>(branch_row, first, args.columns, added);
    if (branch.drops) branch.mask.apply(row, first, added, added);
#pragma unroll
    for (int i = 0; i < size; ++i) values[i] += added[i];
    write_pack<T, Row::whole>(sum_row, first, args.columns, values);
    if constexpr (Row::whole) held.held[k] = pack<T>(values);
  });
  if constexpr (!Row::whole) held.load(sum_row, lane, args.columns);  // each lane reads what it wrote
}

// One group of warps per row. Mean and variance in two walks over the row, as on the CPU: the second works on
// differences from the first mean, and returns their own mean `delta`, which the rounding of the first took away.
// Reads the input and writes the output once; rows that do not fit the registers are read three times.
template <class T, int packs, int warps, bool fused>
__global__ void __launch_bounds__(RowGroup<warps>::threads)
    layernorm_forward_kernel(const ForwardArguments<T> args, const BranchArguments<T> branch) {
  using Group = RowGroup<warps>;
  using Row = typename RowOf<T, packs, Group::lanes>::type;
  constexpr int size = packed_size<T>;
  __shared__ float shared[2 * Group::per_block * warps];
  const std::int64_t row = blockIdx.x * static_cast<std::int64_t>(Group::per_block) + Group::index();
  if (row >= args.rows) return;  // the whole group
  const int lane = Group::lane(), columns = args.columns;
  Row held;
  held.load(args.input + row * args.input_stride, lane, columns);
  if constexpr (fused) add_branch<T, Row, Group>(args, branch, row, held);

  float sum[1] = {0};
  held.each(lane, columns, [&](int, int first, const float(&values)[size]) {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (Row::whole || first + i < columns) sum[0] += values[i];
    }
  });
  Group::sum(sum, shared);
  const float center = sum[0] / static_cast<float>(columns);

  float sums[2] = {0, 0};  // of differences, and of their squares
  held.each(lane, columns, [&](int, int first, const float(&values)[size]) {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (!Row::whole && first + i >= columns) continue;
      const float difference = values[i] - center;
      sums[0] += difference;
      sums[1] += difference * difference;
    }
  });
  Group::sum(sums, shared);
  const float delta = sums[0] / static_cast<float>(columns);
  const float variance = sums[1] / static_cast<float>(columns) - delta * delta;
  const float scale = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + args.eps);  // NaN stays NaN
  if (args.mean != nullptr && lane == 0) {
    args.mean[row] = center + delta;
    args.rstd[row] = scale;
  }

  T* out_row = args.out + row * args.out_stride;
  held.each(lane, columns, [&](int, int first, const float(&values)[size]) {
    float weight[size], bias[size] = {}, out[size];
    read_pack<T, Row::whole>(args.weight, first, columns, weight);
    if (args.bias != nullptr) read_pack<T, Row::whole>(args.bias, first, columns, bias);
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = fmaf((values[i] - center - delta) * scale, weight[i], bias[i]);
    write_pack<T, Row::whole>(out_row, first, columns, out);
  });
}

// A warp holds a row of up to 2048 bf16 elements: sums over several warps would cost more than the registers.
using ForwardShapes =
    RowShapes<RowShape<1, 1>, RowShape<2, 1>, RowShape<3, 1>, RowShape<4, 1>, RowShape<5, 1>, RowShape<6, 1>,
              RowShape<7, 1>, RowShape<8, 1>, RowShape<3, 4>, RowShape<4, 4>, RowShape<4, 8>>;

template <class T, bool fused>
void launch_forward(const Context& context, const char* name, const ForwardArguments<T>& args,
                    const BranchArguments<T>& branch, bool whole) {
  dispatch_row_shape<T>(ForwardShapes{}, args.columns, whole, [&](auto shape) {
    constexpr int packs = decltype(shape)::packs, warps = decltype(shape)::warps;
    using Group = RowGroup<warps>;
    const unsigned blocks = static_cast<unsigned>((args.rows + Group::per_block - 1) / Group::per_block);
    layernorm_forward_kernel<T, packs, warps, fused>
        <<<blocks, Group::threads, 0, stream_of(context.stream())>>>(args, branch);
    check_launch(name);
  });
}

// For LayerNormForward and ResidualLayerNorm, whose `input` is given apart.
template <class T, class Args>
ForwardArguments<T> forward_arguments(const Args& args, const ConstTensor& input) {
  ForwardArguments<T> values{};
  values.input = input.as<T>();
  values.weight = args.weight.template as<T>();
  values.bias = args.bias ? args.bias.template as<T>() : nullptr;
  values.out = args.out.template as<T>();
  values.mean = args.mean ? args.mean.template as<float>() : nullptr;
  values.rstd = args.rstd ? args.rstd.template as<float>() : nullptr;
  values.input_stride = input.row_stride;
  values.out_stride = args.out.row_stride;
  values.rows = input.rows();
  values.columns = static_cast<int>(input.columns());
  values.eps = args.eps;
  return values;
}

// Whether rows can be held as full packs.
template <class T>
bool rows_are_whole(std::int64_t columns, std::initializer_list<ConstTensor> tensors) {
  bool whole = columns % packed_size<T> == 0;
  for (const ConstTensor& tensor : tensors) whole = whole && (!tensor || rows_are_packed<T>(tensor));
  return whole;
}

}  // namespace

void layernorm_forward(const Context& context, const LayerNormForward& args) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  if (rows == 0 || columns == 0) return;
  require_row_sizes(rows, columns, "layernorm_forward");
  const DeviceScope device(context);
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool whole = rows_are_whole<T>(columns, {args.input, args.weight, args.bias, args.out});
    launch_forward<T, false>(context, "layernorm_forward", forward_arguments<T>(args, args.input), {}, whole);
  });
}

void residual_layernorm(const Context& context, const ResidualLayerNorm& args) {
  const std::int64_t rows = args.residual.rows(), columns = args.residual.columns();
  if (rows == 0 || columns == 0) return;
  require_row_sizes(rows, columns, "residual_layernorm");
  const DeviceScope device(context);
  dispatch_fp32_bf16(args.residual.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool whole =
        rows_are_whole<T>(columns, {args.residual, args.branch, args.sum, args.weight, args.bias, args.out});
    BranchArguments<T> branch{};
    branch.branch = args.branch.as<T>();
    branch.sum = args.sum.as<T>();
    branch.branch_stride = args.branch.row_stride;
    branch.sum_stride = args.sum.row_stride;
    branch.drops = args.dropout.probability > 0;
    branch.mask = dropout_mask(args.dropout);
    launch_forward<T, true>(context, "residual_layernorm", forward_arguments<T>(args, args.residual), branch, whole);
  });
}

}  // namespace greyhound::cuda
