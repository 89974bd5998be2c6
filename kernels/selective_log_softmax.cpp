#include <greyhound/kernels/selective_log_softmax.h>

#include <greyhound/kernels/backend.h>
#include <greyhound/kernels/class_index_checks.h>

namespace greyhound {

void selective_log_softmax_rows(const Context& context, const SelectiveLogSoftmax& args) {
  check_selection(context, args);
  require(args.out.dtype == DType::fp32 || args.out.dtype == args.logits.dtype, "out: expected fp32 or ",
          name_of(args.logits.dtype), ", got ", name_of(args.out.dtype));
  require_tensor(args.out, "out", args.out.dtype, args.index.shape);
  require_device(context, args.out, "out");
  if (args.lse) require_tensor(args.lse, "lse", DType::fp32, Shape{args.logits.rows()});
  require_device(context, args.lse, "lse");
  run_on_device(
      context, [&] { cpu::selective_log_softmax_rows(context, args); },
      [&] { cuda::selective_log_softmax_rows(context, args); });
}

void check_indices(const Context& context, const CheckIndices& args) {
  check_index_tensor(context, args.index);
  require(args.vocab >= 1, "check_indices: vocab ", args.vocab, ": expected at least 1");
  require(args.errors != nullptr, "check_indices: errors not given");
  run_on_device(
      context, [&] { cpu::check_indices(context, args); }, [&] { cuda::check_indices(context, args); });
}

}  // namespace greyhound
