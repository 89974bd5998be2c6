// Products with GELU or its slope: Hopper's kernels where they pay, or the product and a pass of its own.
#include <greyhound/kernels/matmul_gelu.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/gelu_product.h>
#include <greyhound/kernels/cuda/column_partials.cuh>
#include <greyhound/kernels/cuda/gelu_product_launch.cuh>

#include <algorithm>
#include <initializer_list>

namespace greyhound::cuda {

namespace {

using Forward = hopper::GeluProductTiling<false>;
using Backward = hopper::GeluProductTiling<true>;

std::int64_t whole_tiles(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }
std::int64_t partial_rows(std::int64_t rows) { return whole_tiles(rows, Backward::Rows); }

// Four tiles for each of an H200's 132 multiprocessors. With fewer, most of them wait for the last tiles, where the
// library cuts a product finer. A rule about shapes alone, so that the same call has the same bits on all of them.
constexpr std::int64_t least_tiles = 4 * 132;

// Whether the driver and the kernels take such a matrix: rows that begin at 16 bytes, and in which 16 bytes are inside
// or outside.
bool takes_matrix(const ConstTensor& matrix) {
  constexpr std::int64_t granule = 8, most = std::int64_t{1} << 30;  // the kernels count in int
  return matrix.dtype == DType::bf16 && reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
         matrix.row_stride % granule == 0 && matrix.columns() % granule == 0 && matrix.row_stride < most &&
         matrix.rows() < most && matrix.columns() > 0;
}

bool takes_product(const Context& context, std::int64_t rows, std::int64_t columns,
                   std::initializer_list<ConstTensor> matrices) {
  const std::int64_t tiles = whole_tiles(rows, Forward::Rows) * whole_tiles(columns, Forward::Columns);
  constexpr std::int64_t most_tiles = std::int64_t{1} << 30;
  return tiles >= least_tiles && tiles < most_tiles && hopper::is_hopper(context) &&
         std::all_of(matrices.begin(), matrices.end(), takes_matrix);
}

// `pre` may be none.
hopper::GeluProductTask task_of(const ConstTensor& a, const ConstTensor& pre, const Tensor& out) {
  hopper::GeluProductTask task{};
  task.rows = static_cast<int>(out.rows());
  task.columns = static_cast<int>(out.columns());
  task.depth = static_cast<int>(a.columns());
  if (pre) {
    task.pre = const_cast<bf16*>(pre.as<bf16>());  // backward only reads it
    task.pre_stride = pre.row_stride;
  }
  task.out = out.as<bf16>();
  task.out_stride = out.row_stride;
  return task;
}

hopper::GeluProductOperand operand(const ConstTensor& matrix) { return {matrix.as<bf16>(), matrix.row_stride}; }

// The kernel, and the sum of its partial sums. False, with nothing enqueued, where it is not for these operands.
bool backward_product(const Context& context, const MatmulGeluBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.grad_input.rows(), columns = args.grad_input.columns();
  if (!takes_product(context, rows, columns, {args.grad_out, args.weight, args.pre_activation, args.grad_input})) {
    return false;
  }
  static const bool compiled = hopper::is_compiled(hopper::gelu_product_kernel<Backward>);
  if (!compiled) return false;
  const Workspace::Scope scope(workspace);
  const cudaStream_t stream = stream_of(context.stream());
  hopper::GeluProductTask task = task_of(args.grad_out, args.pre_activation, args.grad_input);
  task.partials = workspace.take(DType::fp32, {partial_rows(rows), columns}).as<float>();
  if (!hopper::launch_gelu_product<Backward>(stream, cache_of(context).multiprocessors, task, operand(args.grad_out),
                                             operand(args.weight))) {
    return false;
  }
  if (args.grad_bias) {
    add_partials(stream, "matmul_gelu_backward", task.partials, partial_rows(rows), columns,
                 PutSum{args.grad_bias.as<float>(), args.accumulate_bias});
  }
  return true;
}

}  // namespace

bool takes_gelu_product(const Context& context, const Matmul& args) {
  const bool plain = args.activation == Activation::gelu && args.alpha == 1 && args.beta == 0 && !args.alpha_factor &&
                     !args.transpose_a && args.transpose_b;
  if (!plain || !takes_product(context, args.out.rows(), args.out.columns(), {args.a, args.b, args.out})) return false;
  if (args.pre_activation && !takes_matrix(args.pre_activation)) return false;
  static const bool compiled = hopper::is_compiled(hopper::gelu_product_kernel<Forward>);
  return compiled;
}

bool gelu_product(const Context& context, const Matmul& args) {
  hopper::GeluProductTask task = task_of(args.a, args.pre_activation, args.out);
  if (args.bias) task.bias = args.bias.as<bf16>();
  return hopper::launch_gelu_product<Forward>(stream_of(context.stream()), cache_of(context).multiprocessors, task,
                                              operand(args.a), operand(args.b));
}

void matmul_gelu_backward(const Context& context, const MatmulGeluBackward& args, Workspace& workspace) {
  const DeviceScope device(context);
  if (backward_product(context, args, workspace)) return;
  cuda::matmul(context, detail::product_of(args), workspace);
  cuda::gelu_backward(context, detail::gelu_of(args), workspace);
}

std::size_t matmul_gelu_backward_workspace_bytes(const Context& context, const MatmulGeluBackward& args) {
  const std::int64_t rows = args.pre_activation.rows(), columns = args.pre_activation.columns();
  return std::max({cuda::matmul_workspace_bytes(context, detail::product_of(args)),
                   cuda::column_sum_workspace_bytes(context, rows, columns),
                   Workspace::size(DType::fp32, {partial_rows(rows), columns})});
}

}  // namespace greyhound::cuda
