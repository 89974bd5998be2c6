#include <greyhound/kernels/matmul_gelu.h>

#include <greyhound/kernels/argument_checks.h>

namespace greyhound {

Matmul detail::product_of(const MatmulGeluBackward& args) {
  Matmul product;
  product.a = args.grad_out;
  product.b = args.weight;
  product.out = args.grad_input;
  return product;
}

GeluBackward detail::gelu_of(const MatmulGeluBackward& args) {
  return {args.grad_input, args.pre_activation, args.grad_input, args.grad_bias, args.accumulate_bias};
}

void matmul_gelu_backward(const Context& context, const MatmulGeluBackward& args, Workspace& workspace) {
  const DType dtype = args.grad_out.dtype;
  const std::int64_t m = args.grad_out.rows(), k = args.grad_out.columns(), n = args.weight.columns();
  require_fp32_or_bf16(args.grad_out, "matmul_gelu_backward: grad_out");
  require_matrix(context, args.grad_out, "matmul_gelu_backward: grad_out", dtype, m, k);
  require_matrix(context, args.weight, "matmul_gelu_backward: weight", dtype, k, n);
  require_matrix(context, args.pre_activation, "matmul_gelu_backward: pre_activation", dtype, m, n);
  require_matrix(context, args.grad_input, "matmul_gelu_backward: grad_input", dtype, m, n);
  if (args.grad_bias) {
    require_vector(context, args.grad_bias, "matmul_gelu_backward: grad_bias", DType::fp32, n);
  }
  run_on_device(
      context, [&] { cpu::matmul_gelu_backward(context, args, workspace); },
      [&] { cuda::matmul_gelu_backward(context, args, workspace); }, {"matmul_gelu_backward", m, n, k, false, false});
}

std::size_t matmul_gelu_backward_workspace_bytes(const Context& context, const MatmulGeluBackward& args) {
  return context.device().is_cuda() ? cuda::matmul_gelu_backward_workspace_bytes(context, args)
                                    : cpu::matmul_gelu_backward_workspace_bytes(context, args);
}

}  // namespace greyhound
