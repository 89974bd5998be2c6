#include <greyhound/kernels/selective_log_softmax.h>

#include <greyhound/kernels/backend.h>

#include <cmath>

namespace greyhound {

void selective_log_softmax_rows(const Context& context, const SelectiveLogSoftmax& args) {
  const Shape& shape = args.index.shape;
  require(args.logits.shape.rank() == 2, "logits: expected [N, P], got ", to_string(args.logits.shape));
  require((shape.rank() == 1 || shape.rank() == 2) && shape[0] == args.logits.rows(),
          "index: expected [N] or [N, K] for ", args.logits.rows(), " rows of logits, got ", to_string(shape));
  require(args.index.dtype == DType::int32 || args.index.dtype == DType::int64, "index: expected int32 or int64, got ",
          name_of(args.index.dtype));
  require(args.index || shape.elements() == 0, "index: not given");
  require(args.vocab >= 1 && args.vocab <= args.logits.columns(), "selective_log_softmax: vocab ", args.vocab,
          ": expected 1 to the ", args.logits.columns(), " columns of the logits");
  require(args.out.dtype == DType::fp32 || args.out.dtype == args.logits.dtype, "out: expected fp32 or ",
          name_of(args.logits.dtype), ", got ", name_of(args.out.dtype));
  require_tensor(args.out, "out", args.out.dtype, shape);
  if (args.lse) require_tensor(args.lse, "lse", DType::fp32, Shape{args.logits.rows()});
  require(args.softcap >= 0 && std::isfinite(args.softcap), "selective_log_softmax: softcap ", args.softcap,
          ": expected a positive number, or 0 for none");
  require(args.logit_scale > 0 && std::isfinite(args.logit_scale), "selective_log_softmax: logit_scale ",
          args.logit_scale, ": expected a positive number");
  require_device(context, args.logits, "logits");
  require_device(context, args.index, "index");
  require_device(context, args.out, "out");
  require_device(context, args.lse, "lse");
  run_on_device(
      context, [&] { cpu::selective_log_softmax_rows(context, args); },
      [&] { cuda::selective_log_softmax_rows(context, args); });
}

}  // namespace greyhound
