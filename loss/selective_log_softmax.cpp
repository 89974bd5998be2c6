#include <greyhound/loss/selective_log_softmax.h>

#include <greyhound/kernels/selective_log_softmax.h>
#include <greyhound/loss/class_index.h>

namespace greyhound::loss {

void selective_log_softmax(const Context& context, const ConstTensor& logits, const ConstTensor& index,
                           const Tensor& out, const SelectiveLogSoftmaxOptions& options, const Tensor& lse) {
  const ClassIndex classes(index, logits.shape, "logits");
  SelectiveLogSoftmax args;
  args.logits = as_matrix(logits);
  args.index = classes.flat();
  args.out = classes.flatten(out, "out");
  args.lse = classes.flatten_rows(lse, "lse");
  set_options(args, options, options.vocab == 0 ? logits.columns() : options.vocab);
  args.errors = options.errors;
  selective_log_softmax_rows(context, args);
}

void selective_log_softmax_backward(const Context& context, const ConstTensor& grad_out, const ConstTensor& index,
                                    const ConstTensor& logits, const ConstTensor& lse, const Tensor& grad_logits,
                                    const SelectiveLogSoftmaxOptions& options) {
  const ClassIndex classes(index, logits.shape, "logits");
  require(grad_logits.shape == logits.shape, "grad_logits: expected the logits' shape ", to_string(logits.shape),
          ", got ", to_string(grad_logits.shape));
  require(lse || classes.flat().shape[0] == 0, "lse: not given; the forward writes it");
  SelectiveLogSoftmaxBackward args;
  args.logits = as_matrix(logits);
  args.index = classes.flat();
  args.grad_out = classes.flatten(grad_out, "grad_out");
  args.lse = lse ? classes.flatten_rows(lse, "lse") : ConstTensor(nullptr, DType::fp32, Shape{0}, context.device());
  args.grad = as_matrix(grad_logits);
  set_options(args, options, options.vocab == 0 ? logits.columns() : options.vocab);
  selective_log_softmax_backward_rows(context, args);
  if (options.errors != nullptr) check_indices(context, {args.index, args.vocab, args.ignore_index, options.errors});
}

}  // namespace greyhound::loss
