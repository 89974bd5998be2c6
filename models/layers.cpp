#include <greyhound/kernels/layernorm.h>
#include <greyhound/kernels/matmul_gelu.h>
#include <greyhound/models/layers.h>

#include <algorithm>

namespace greyhound {
namespace {

// The three products of a linear layer, for calling and for sizing their scratch.
Matmul forward_product(const Linear& linear, const ConstTensor& input, const Tensor& out) {
  Matmul product;
  product.a = input;
  product.b = linear.weight.value;
  product.transpose_b = true;
  product.out = out;
  product.bias = linear.bias.value;
  return product;
}

Matmul grad_input_product(const Linear& linear, const ConstTensor& grad_out, const Tensor& grad_input) {
  Matmul product;
  product.a = grad_out;
  product.b = linear.weight.value;
  product.out = grad_input;
  return product;
}

Matmul grad_weight_product(const Linear& linear, const ConstTensor& grad_out, const ConstTensor& input,
                           bool accumulate) {
  Matmul product;
  product.a = grad_out;
  product.transpose_a = true;
  product.b = input;
  product.out = linear.weight.grad;
  product.beta = accumulate ? 1.0f : 0.0f;
  return product;
}

}  // namespace

void linear_forward(const Context& context, const Linear& linear, const ConstTensor& input, const Tensor& out,
                    Workspace& workspace) {
  matmul(context, forward_product(linear, input, out), workspace);
}

void linear_gelu_forward(const Context& context, const Linear& linear, const ConstTensor& input,
                         const Tensor& pre_activation, const Tensor& out, Workspace& workspace) {
  Matmul product = forward_product(linear, input, out);
  product.activation = Activation::gelu;
  product.pre_activation = pre_activation;
  matmul(context, product, workspace);
}

void linear_backward(const Context& context, const Linear& linear, const ConstTensor& grad_out,
                     const ConstTensor& input, const Tensor& grad_input, bool accumulate, Workspace& workspace) {
  matmul(context, grad_weight_product(linear, grad_out, input, accumulate), workspace);
  matmul(context, grad_input_product(linear, grad_out, grad_input), workspace);
}

void linear_gelu_backward(const Context& context, const Linear& linear, const ConstTensor& grad_out,
                          const ConstTensor& input, const ConstTensor& pre_activation,
                          const Tensor& grad_pre_activation, const Tensor& grad_bias_before, bool accumulate,
                          Workspace& workspace) {
  matmul(context, grad_weight_product(linear, grad_out, input, accumulate), workspace);
  MatmulGeluBackward args;
  args.grad_out = grad_out;
  args.weight = linear.weight.value;
  args.pre_activation = pre_activation;
  args.grad_input = grad_pre_activation;
  args.grad_bias = grad_bias_before;
  args.accumulate_bias = accumulate;
  matmul_gelu_backward(context, args, workspace);
}

void bias_backward(const Context& context, const Linear& linear, const ConstTensor& grad_out, bool accumulate,
                   Workspace& workspace) {
  if (linear.bias) column_sum(context, {grad_out, linear.bias.grad, accumulate}, workspace);
}

std::size_t linear_workspace_bytes(const Context& context, DType dtype, std::int64_t rows, std::int64_t in,
                                   std::int64_t out, bool backward) {
  // Tensors without memory: only their shapes and dtypes are looked at.
  const auto shaped = [&](DType of, const Shape& shape) { return Tensor(nullptr, of, shape, context.device()); };
  const Tensor input = shaped(dtype, {rows, in}), output = shaped(dtype, {rows, out});
  Linear linear;
  linear.weight = {shaped(dtype, {out, in}), shaped(DType::fp32, {out, in})};
  linear.bias = {shaped(dtype, {out}), shaped(DType::fp32, {out})};

  Matmul forward = forward_product(linear, input, output);
  std::size_t bytes = matmul_workspace_bytes(context, forward);
  forward.activation = Activation::gelu;
  forward.pre_activation = output;
  bytes = std::max(bytes, matmul_workspace_bytes(context, forward));
  if (backward) {
    const Matmul to_input = grad_input_product(linear, output, input);
    const Matmul to_weight = grad_weight_product(linear, output, input, true);
    MatmulGeluBackward to_gelu;
    to_gelu.grad_out = output;
    to_gelu.weight = linear.weight.value;
    to_gelu.pre_activation = to_gelu.grad_input = input;
    bytes = std::max({bytes, matmul_workspace_bytes(context, to_input), matmul_workspace_bytes(context, to_weight),
                      matmul_gelu_backward_workspace_bytes(context, to_gelu),
                      column_sum_workspace_bytes(context, rows, out)});
  }
  return bytes;
}

void norm_forward(const Context& context, const LayerNorm& norm, const ConstTensor& input, const Tensor& out,
                  const NormStatistics& statistics) {
  LayerNormForward args;
  args.input = input;
  args.weight = norm.weight.value;
  args.bias = norm.bias.value;
  args.out = out;
  args.mean = statistics.mean;
  args.rstd = statistics.rstd;
  layernorm_forward(context, args);
}

void add_and_norm(const Context& context, const LayerNorm& norm, const ResidualForward& sum, const Tensor& out,
                  const NormStatistics& statistics) {
  ResidualLayerNorm args;
  args.residual = sum.residual;
  args.branch = sum.branch;
  args.sum = sum.out;
  args.dropout = sum.dropout;
  args.weight = norm.weight.value;
  args.bias = norm.bias.value;
  args.out = out;
  args.mean = statistics.mean;
  args.rstd = statistics.rstd;
  residual_layernorm(context, args);
}

void norm_backward(const Context& context, const LayerNorm& norm, const ConstTensor& grad_out, const ConstTensor& input,
                   const NormStatistics& statistics, const Tensor& grad_input, bool accumulate_input, bool accumulate,
                   Workspace& workspace, const Tensor& grad_bias_before) {
  LayerNormBackward args;
  args.grad_out = grad_out;
  args.input = input;
  args.weight = norm.weight.value;
  args.mean = statistics.mean;
  args.rstd = statistics.rstd;
  args.grad_input = grad_input;
  args.accumulate_input = accumulate_input;
  args.grad_weight = norm.weight.grad;
  args.grad_bias = norm.bias.grad;
  args.grad_input_sums = grad_bias_before;
  args.accumulate_weight = accumulate;
  layernorm_backward(context, args, workspace);
}

Weight ParameterBlocks::weight(const std::string& name) const {
  const Parameter& parameter = list[name];
  Weight weight{ParameterList::view(weights, parameter), {}};
  if (gradients) weight.grad = ParameterList::view(gradients, parameter);
  return weight;
}

Linear ParameterBlocks::linear(const std::string& name, bool bias) const {
  return {weight(name + ".weight"), bias ? weight(name + ".bias") : Weight{}};
}

LayerNorm ParameterBlocks::norm(const std::string& name, bool bias) const {
  return {weight(name + ".weight"), bias ? weight(name + ".bias") : Weight{}};
}

}  // namespace greyhound
