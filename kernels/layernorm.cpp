#include <greyhound/kernels/layernorm.h>

#include <greyhound/kernels/argument_checks.h>

namespace greyhound {

void layernorm_forward(const Context& context, const LayerNormForward& args) {
  const DType dtype = args.input.dtype;
  const std::int64_t rows = args.input.rows(), channels = args.input.columns();
  require_fp32_or_bf16(args.input, "layernorm_forward: input");
  require_matrix(context, args.input, "layernorm_forward: input", dtype, rows, channels);
  require_vector(context, args.weight, "layernorm_forward: weight", dtype, channels);
  if (args.bias) require_vector(context, args.bias, "layernorm_forward: bias", dtype, channels);
  require_matrix(context, args.out, "layernorm_forward: out", dtype, rows, channels);
  if (args.mean || args.rstd) {
    require_vector(context, args.mean, "layernorm_forward: mean", DType::fp32, rows);
    require_vector(context, args.rstd, "layernorm_forward: rstd", DType::fp32, rows);
  }
  require(args.eps >= 0, "layernorm_forward: expected eps >= 0, got ", args.eps);
  run_on_device(
      context, [&] { cpu::layernorm_forward(context, args); }, [&] { cuda::layernorm_forward(context, args); });
}

void layernorm_backward(const Context& context, const LayerNormBackward& args, Workspace& workspace) {
  const DType dtype = args.input.dtype;
  const std::int64_t rows = args.input.rows(), channels = args.input.columns();
  require_fp32_or_bf16(args.input, "layernorm_backward: input");
  require_matrix(context, args.input, "layernorm_backward: input", dtype, rows, channels);
  require_matrix(context, args.grad_out, "layernorm_backward: grad_out", dtype, rows, channels);
  require_vector(context, args.weight, "layernorm_backward: weight", dtype, channels);
  require_vector(context, args.mean, "layernorm_backward: mean", DType::fp32, rows);
  require_vector(context, args.rstd, "layernorm_backward: rstd", DType::fp32, rows);
  require_matrix(context, args.grad_input, "layernorm_backward: grad_input", dtype, rows, channels);
  require_vector(context, args.grad_weight, "layernorm_backward: grad_weight", DType::fp32, channels);
  if (args.grad_bias) require_vector(context, args.grad_bias, "layernorm_backward: grad_bias", DType::fp32, channels);
  require(!args.accumulate_input || !args.grad_input || args.grad_input.data != args.grad_out.data,
          "layernorm_backward: grad_input must not be grad_out when it is accumulated into");
  run_on_device(
      context, [&] { cpu::layernorm_backward(context, args, workspace); },
      [&] { cuda::layernorm_backward(context, args, workspace); });
}

std::size_t layernorm_backward_workspace_bytes(const Context& context, std::int64_t rows, std::int64_t channels) {
  return context.device().is_cuda() ? cuda::layernorm_backward_workspace_bytes(context, rows, channels)
                                    : cpu::layernorm_backward_workspace_bytes(context, rows, channels);
}

}  // namespace greyhound
