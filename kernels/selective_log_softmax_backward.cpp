#include <greyhound/kernels/class_index_checks.h>
#include <greyhound/kernels/selective_log_softmax.h>

namespace greyhound {

void selective_log_softmax_backward_rows(const Context& context, const SelectiveLogSoftmaxBackward& args) {
  check_selection(context, args);
  require(args.grad_out.dtype == DType::fp32 || args.grad_out.dtype == args.logits.dtype, "grad_out: expected fp32 or ",
          name_of(args.logits.dtype), ", got ", name_of(args.grad_out.dtype));
  require_tensor(args.grad_out, "grad_out", args.grad_out.dtype, args.index.shape);
  require_tensor(args.lse, "lse", DType::fp32, Shape{args.logits.rows()});
  require_tensor(args.grad, "grad_logits", args.logits.dtype, args.logits.shape);
  require(args.grad.data != args.logits.data || args.grad.row_stride == args.logits.row_stride,
          "grad_logits: in the logits' memory, it must have their row stride of ", args.logits.row_stride, ", got ",
          args.grad.row_stride);
  if (args.grad_scale) require_tensor(args.grad_scale, "grad_scale", DType::fp32, Shape{1});
  require_device(context, args.grad_out, "grad_out");
  require_device(context, args.lse, "lse");
  require_device(context, args.grad, "grad_logits");
  require_device(context, args.grad_scale, "grad_scale");
  run_on_device(
      context, [&] { cpu::selective_log_softmax_backward_rows(context, args); },
      [&] { cuda::selective_log_softmax_backward_rows(context, args); });
}

}  // namespace greyhound
