// What selective log-softmax and its backward require of their arguments. Internal to kernels/.
#pragma once

#include <greyhound/kernels/backend.h>

#include <cmath>

namespace greyhound {

inline void check_index_tensor(const Context& context, const ConstTensor& index) {
  require(index.shape.rank() == 1 || index.shape.rank() == 2, "index: expected [N] or [N, K], got ",
          to_string(index.shape));
  require(index.dtype == DType::int32 || index.dtype == DType::int64, "index: expected int32 or int64, got ",
          name_of(index.dtype));
  require(index || index.elements() == 0, "index: not given");
  require_device(context, index, "index");
}

// For any arguments with logits, index, vocab, softcap and logit_scale.
template <class Args>
void check_selection(const Context& context, const Args& args) {
  require(args.logits.shape.rank() == 2, "logits: expected [N, P], got ", to_string(args.logits.shape));
  check_index_tensor(context, args.index);
  require(args.index.shape[0] == args.logits.rows(), "index: expected [N] or [N, K] for ", args.logits.rows(),
          " rows of logits, got ", to_string(args.index.shape));
  require(args.vocab >= 1 && args.vocab <= args.logits.columns(), "selective_log_softmax: vocab ", args.vocab,
          ": expected 1 to the ", args.logits.columns(), " columns of the logits");
  require(args.softcap >= 0 && std::isfinite(args.softcap), "selective_log_softmax: softcap ", args.softcap,
          ": expected a positive number, or 0 for none");
  require(args.logit_scale > 0 && std::isfinite(args.logit_scale), "selective_log_softmax: logit_scale ",
          args.logit_scale, ": expected a positive number");
  require_device(context, args.logits, "logits");
}

}  // namespace greyhound
