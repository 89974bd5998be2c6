#include <greyhound/kernels/layernorm.h>

#include <greyhound/kernels/argument_checks.h>

#include <string>

namespace greyhound {

namespace {

// What every form of layer norm takes besides its input of this shape.
template <class Args>
void require_norm(const Context& context, const Args& args, const ConstTensor& input, const char* name) {
  const auto named = [&](const char* argument) { return std::string(name) + ": " + argument; };
  const DType dtype = input.dtype;
  const std::int64_t rows = input.rows(), channels = input.columns();
  require_vector(context, args.weight, named("weight").c_str(), dtype, channels);
  if (args.bias) require_vector(context, args.bias, named("bias").c_str(), dtype, channels);
  require_matrix(context, args.out, named("out").c_str(), dtype, rows, channels);
  if (args.mean || args.rstd) {
    require_vector(context, args.mean, named("mean").c_str(), DType::fp32, rows);
    require_vector(context, args.rstd, named("rstd").c_str(), DType::fp32, rows);
  }
  require(args.eps >= 0, name, ": expected eps >= 0, got ", args.eps);
}

}  // namespace

void layernorm_forward(const Context& context, const LayerNormForward& args) {
  require_fp32_or_bf16(args.input, "layernorm_forward: input");
  require_matrix(context, args.input, "layernorm_forward: input", args.input.dtype, args.input.rows(),
                 args.input.columns());
  require_norm(context, args, args.input, "layernorm_forward");
  run_on_device(
      context, [&] { cpu::layernorm_forward(context, args); }, [&] { cuda::layernorm_forward(context, args); });
}

void residual_layernorm(const Context& context, const ResidualLayerNorm& args) {
  const DType dtype = args.residual.dtype;
  const std::int64_t rows = args.residual.rows(), channels = args.residual.columns();
  require_fp32_or_bf16(args.residual, "residual_layernorm: residual");
  require_matrix(context, args.residual, "residual_layernorm: residual", dtype, rows, channels);
  require_matrix(context, args.branch, "residual_layernorm: branch", dtype, rows, channels);
  require_matrix(context, args.sum, "residual_layernorm: sum", dtype, rows, channels);
  require(args.dropout.probability >= 0 && args.dropout.probability < 1,
          "residual_layernorm: dropout: expected a probability in [0, 1), got ", args.dropout.probability);
  require_norm(context, args, args.residual, "residual_layernorm");
  for (const ConstTensor& other : {args.residual, args.branch, ConstTensor(args.sum)}) {
    require(!other || args.out.data != other.data, "residual_layernorm: out must not be residual, branch or sum");
  }
  run_on_device(
      context, [&] { cpu::residual_layernorm(context, args); }, [&] { cuda::residual_layernorm(context, args); });
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
  if (args.grad_input_sums) {
    require_vector(context, args.grad_input_sums, "layernorm_backward: grad_input_sums", DType::fp32, channels);
  }
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
