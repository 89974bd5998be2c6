#include <greyhound/loss/chunked_linear_selective_log_softmax.h>

#include <greyhound/kernels/linear_loss.h>
#include <greyhound/kernels/selective_log_softmax.h>
#include <greyhound/loss/chunked_call.h>
#include <greyhound/loss/class_index.h>

namespace greyhound::loss {

namespace {

void check_vocab(const Plan& plan, const SelectiveLogSoftmaxOptions& options) {
  require(options.vocab == 0 || options.vocab == plan.shape.vocab, "vocab: the plan's ", plan.shape.vocab,
          " or 0 expected, got ", options.vocab);
}

// Of all rows at once: a chunk would count its own from 0.
void record_errors(const Context& context, const Targets& targets, ErrorWord* errors) {
  if (errors != nullptr) check_indices(context, {targets.index, targets.vocab, targets.ignore_index, errors});
}

}  // namespace

void chunked_linear_selective_log_softmax(const Context& context, const Plan& plan, const LinearIndex& inputs,
                                          const Tensor& out, const SelectiveLogSoftmaxOptions& options,
                                          Workspace& workspace, const Tensor& lse) {
  check_vocab(plan, options);
  const ClassIndex classes(inputs.index, inputs.inputs.shape, "inputs");
  const Tensor flat_out = classes.flatten(out, "out"), flat_lse = classes.flatten_rows(lse, "lse");
  const Targets targets{classes.flat(), plan.shape.vocab, options.ignore_index};
  ChunkedCall call(context, plan, {inputs.inputs, inputs.weight, inputs.bias}, {}, workspace);
  call.run({}, [&](std::int64_t first, const Tensor& tile) {
    const std::int64_t count = tile.rows();
    SelectiveLogSoftmax args;
    args.logits = tile;
    args.index = index_range(targets.index, first, count);
    args.out = index_range(flat_out, first, count);
    if (flat_lse) args.lse = flat_lse.slice(first, Shape{count});
    set_options(args, options, targets.vocab);
    selective_log_softmax_rows(context, args);
  });
  record_errors(context, targets, options.errors);
}

void chunked_linear_selective_log_softmax_backward(const Context& context, const Plan& plan, const LinearIndex& inputs,
                                                   const ConstTensor& grad_out, const ConstTensor& lse,
                                                   const SelectiveLogSoftmaxOptions& options,
                                                   const LinearGradients& gradients, Workspace& workspace) {
  check_vocab(plan, options);
  const ClassIndex classes(inputs.index, inputs.inputs.shape, "inputs");
  const ConstTensor flat_grad_out = classes.flatten(grad_out, "grad_out"), flat_lse = classes.flatten_rows(lse, "lse");
  const Targets targets{classes.flat(), plan.shape.vocab, options.ignore_index};
  ChunkedCall call(context, plan, {inputs.inputs, inputs.weight, inputs.bias}, gradients, workspace);
  require(lse || call.rows() == 0, "lse: not given; the forward writes it");
  TileGradients of;
  of.counted = targets;
  Tensor grad_scale;
  if (call.normalizes() && call.rows() > 0) {
    grad_scale = call.buffers().row_upstream.slice(0, Shape{1});
    of.alpha = call.buffers().alpha;
    normalize_grad_out(context, {targets, flat_grad_out, options.logit_scale, grad_scale, call.buffers().alpha});
  }
  if (call.wants_gradients()) {
    call.run(of, [&](std::int64_t first, const Tensor& tile) {
      const std::int64_t count = tile.rows();
      SelectiveLogSoftmaxBackward args;
      args.logits = tile;
      args.grad = tile;
      args.index = index_range(targets.index, first, count);
      args.grad_out = index_range(flat_grad_out, first, count);
      args.lse = flat_lse.slice(first, Shape{count});
      args.grad_scale = grad_scale;
      set_options(args, options, targets.vocab);
      selective_log_softmax_backward_rows(context, args);
    });
  }
  record_errors(context, targets, options.errors);
}

}  // namespace greyhound::loss
