#include <greyhound/loss/selective_log_softmax.h>

#include <greyhound/kernels/selective_log_softmax.h>
#include <greyhound/loss/row_arguments.h>

namespace greyhound::loss {

namespace {

// Whether `shape` is the logits' shape without its last dimension, or with K in place of it.
bool is_index_shape(const Shape& shape, const Shape& logits) {
  if (shape.rank() != logits.rank() && shape.rank() != logits.rank() - 1) return false;
  for (int axis = 0; axis + 1 < logits.rank(); ++axis) {
    if (shape[axis] != logits[axis]) return false;
  }
  return true;
}

}  // namespace

void selective_log_softmax(const Context& context, const ConstTensor& logits, const ConstTensor& index,
                           const Tensor& out, const SelectiveLogSoftmaxOptions& options, const Tensor& lse) {
  require(logits.shape.rank() >= 1, "logits: expected [..., V], got a scalar");
  require(is_index_shape(index.shape, logits.shape), "index: expected the shape of logits ", to_string(logits.shape),
          " without its last dimension, or with K in place of it, got ", to_string(index.shape));
  require(out.shape == index.shape, "out: expected index's shape ", to_string(index.shape), ", got ",
          to_string(out.shape));
  require(!lse || (lse.elements() == logits.rows() && lse.contiguous()), "lse: expected ", logits.rows(),
          " dense values, got ", to_string(lse.shape));
  SelectiveLogSoftmax args;
  args.logits = as_matrix(logits);
  const bool several = index.shape.rank() == logits.shape.rank();
  args.index = several ? as_matrix(index) : as_vector(index, "index");
  args.out = several ? as_matrix(out) : tensor(out.data, out.dtype, {out.elements()}, 0, out.device);
  require(several || out.contiguous(), "out: expected dense values");
  if (lse) args.lse = tensor(lse.data, lse.dtype, {lse.elements()}, 0, lse.device);
  args.vocab = options.vocab == 0 ? logits.columns() : options.vocab;
  args.ignore_index = options.ignore_index;
  args.softcap = options.softcap;
  args.logit_scale = options.logit_scale;
  args.errors = options.errors;
  selective_log_softmax_rows(context, args);
}

}  // namespace greyhound::loss
