#include <greyhound/kernels/elementwise.h>

#include <greyhound/kernels/argument_checks.h>

#include <cmath>

namespace greyhound {

namespace {

// The tensors of an element-wise operator: one dtype (fp32 or bf16), one number of rows and columns.
void require_same(const Context& context, const ConstTensor& first, const char* first_name, const ConstTensor& other,
                  const char* name) {
  require_fp32_or_bf16(first, first_name);
  require_matrix(context, first, first_name, first.dtype, first.rows(), first.columns());
  require_matrix(context, other, name, first.dtype, first.rows(), first.columns());
}

void require_dropout(const Dropout& dropout, const char* name) {
  require(dropout.probability >= 0 && dropout.probability < 1, name, ": expected a probability in [0, 1), got ",
          dropout.probability);
}

}  // namespace

void gelu_forward(const Context& context, const GeluForward& args) {
  require_same(context, args.input, "gelu_forward: input", args.out, "gelu_forward: out");
  run_on_device(
      context, [&] { cpu::gelu_forward(context, args); }, [&] { cuda::gelu_forward(context, args); });
}

void gelu_backward(const Context& context, const GeluBackward& args, Workspace& workspace) {
  require_same(context, args.input, "gelu_backward: input", args.grad_out, "gelu_backward: grad_out");
  require_same(context, args.input, "gelu_backward: input", args.grad_input, "gelu_backward: grad_input");
  if (args.grad_bias) {
    require_vector(context, args.grad_bias, "gelu_backward: grad_bias", DType::fp32, args.input.columns());
  }
  run_on_device(
      context, [&] { cpu::gelu_backward(context, args, workspace); },
      [&] { cuda::gelu_backward(context, args, workspace); });
}

void softcap(const Context& context, const Softcap& args) {
  require_same(context, args.input, "softcap: input", args.out, "softcap: out");
  require(args.cap > 0 && std::isfinite(args.cap), "softcap: expected a cap above 0, got ", args.cap);
  run_on_device(
      context, [&] { cpu::softcap(context, args); }, [&] { cuda::softcap(context, args); });
}

void residual_forward(const Context& context, const ResidualForward& args) {
  require_same(context, args.residual, "residual_forward: residual", args.branch, "residual_forward: branch");
  require_same(context, args.residual, "residual_forward: residual", args.out, "residual_forward: out");
  require_dropout(args.dropout, "residual_forward: dropout");
  run_on_device(
      context, [&] { cpu::residual_forward(context, args); }, [&] { cuda::residual_forward(context, args); });
}

void dropout_apply(const Context& context, const DropoutApply& args) {
  require_same(context, args.input, "dropout_apply: input", args.out, "dropout_apply: out");
  require_dropout(args.dropout, "dropout_apply: dropout");
  run_on_device(
      context, [&] { cpu::dropout_apply(context, args); }, [&] { cuda::dropout_apply(context, args); });
}

void column_sum(const Context& context, const ColumnSum& args, Workspace& workspace) {
  require_fp32_or_bf16(args.input, "column_sum: input");
  require_matrix(context, args.input, "column_sum: input", args.input.dtype, args.input.rows(), args.input.columns());
  require_vector(context, args.out, "column_sum: out", DType::fp32, args.input.columns());
  run_on_device(
      context, [&] { cpu::column_sum(context, args, workspace); }, [&] { cuda::column_sum(context, args, workspace); });
}

std::size_t column_sum_workspace_bytes(const Context& context, std::int64_t rows, std::int64_t columns) {
  return context.device().is_cuda() ? cuda::column_sum_workspace_bytes(context, rows, columns)
                                    : cpu::column_sum_workspace_bytes(context, rows, columns);
}

void cast(const Context& context, const Cast& args) {
  for (DType dtype : {args.from.dtype, args.to.dtype}) {
    require(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16,
            "cast: expected fp32, bf16 or fp16, got ", name_of(dtype));
  }
  require_matrix(context, args.from, "cast: from", args.from.dtype, args.from.rows(), args.from.columns());
  require_matrix(context, args.to, "cast: to", args.to.dtype, args.from.rows(), args.from.columns());
  run_on_device(
      context, [&] { cpu::cast(context, args); }, [&] { cuda::cast(context, args); });
}

}  // namespace greyhound
