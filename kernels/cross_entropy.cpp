#include <greyhound/kernels/cross_entropy.h>

#include <greyhound/kernels/backend.h>

#include <cmath>

namespace greyhound {

namespace {

// An optional dense array of one value per row (or class).
void check_array(const Context& context, const ConstTensor& array, const char* name, DType dtype,
                 std::int64_t elements) {
  if (!array) return;
  require(array.dtype == dtype, name, ": expected ", name_of(dtype), ", got ", name_of(array.dtype));
  require(array.elements() == elements && array.contiguous(), name, ": expected ", elements, " dense values, got ",
          to_string(array.shape));
  require_device(context, array, name);
}

void check_targets(const Context& context, const Targets& targets, std::int64_t rows) {
  require(targets.vocab >= 1, "cross_entropy: vocab ", targets.vocab, ": expected at least 1");
  require(targets.index.dtype == DType::int32 || targets.index.dtype == DType::int64,
          "targets: expected int32 or int64, got ", name_of(targets.index.dtype));
  require(targets.index || rows == 0, "targets: not given");
  check_array(context, targets.index, "targets", targets.index.dtype, rows);
}

void check_options(const CrossEntropyRows& args) {
  require(args.label_smoothing >= 0 && args.label_smoothing < 1, "cross_entropy: label_smoothing ",
          args.label_smoothing, ": expected 0 <= e < 1");
  require(args.softcap >= 0 && std::isfinite(args.softcap), "cross_entropy: softcap ", args.softcap,
          ": expected a positive number, or 0 for none");
  require(args.logit_scale > 0 && std::isfinite(args.logit_scale), "cross_entropy: logit_scale ", args.logit_scale,
          ": expected a positive number");
  require(std::isfinite(args.z_loss_multiplier), "cross_entropy: z_loss_multiplier ", args.z_loss_multiplier,
          ": expected a finite number");
}

}  // namespace

void cross_entropy_rows(const Context& context, const CrossEntropyRows& args) {
  const std::int64_t rows = args.logits.rows();
  require(args.logits.shape.rank() == 2, "logits: expected [N, P], got ", to_string(args.logits.shape));
  require_device(context, args.logits, "logits");
  check_targets(context, args.targets, rows);
  require(args.logits.columns() >= args.targets.vocab, "logits: ", args.logits.columns(),
          " columns are fewer than the vocabulary of ", args.targets.vocab);
  if (args.grad) {
    require_tensor(args.grad, "grad_logits", args.logits.dtype, args.logits.shape);
    require_device(context, args.grad, "grad_logits");
    require(args.grad.data != args.logits.data || args.grad.row_stride == args.logits.row_stride,
            "grad_logits: in the logits' memory, it must have their row stride of ", args.logits.row_stride, ", got ",
            args.grad.row_stride);
  }
  require((args.row_ce && args.row_z) || rows == 0, "cross_entropy: row_ce and row_z must be given");
  check_array(context, args.row_ce, "row_ce", DType::fp32, rows);
  check_array(context, args.row_z, "row_z", DType::fp32, rows);
  check_array(context, args.row_weight, "row_weight", DType::fp32, rows);
  check_array(context, args.loss, "loss", DType::fp32, rows);
  check_array(context, args.lse, "lse", DType::fp32, rows);
  check_array(context, args.target_logprob, "target_logprob", DType::fp32, rows);
  check_array(context, args.entropy, "entropy", DType::fp32, rows);
  check_array(context, args.argmax, "argmax", DType::int32, rows);
  check_array(context, args.class_weights, "class_weights", DType::fp32, args.targets.vocab);
  check_array(context, args.row_weights, "row_weights", DType::fp32, rows);
  check_array(context, args.upstream, "upstream", DType::fp32, args.upstream.elements() == 1 ? 1 : rows);
  check_array(context, args.denominator, "denominator", DType::fp32, 1);
  check_options(args);
  run_on_device(
      context, [&] { cpu::cross_entropy_rows(context, args); }, [&] { cuda::cross_entropy_rows(context, args); });
}

void count_targets(const Context& context, const CountTargets& args) {
  const std::int64_t rows = args.targets.index.elements();
  check_targets(context, args.targets, rows);
  check_array(context, args.class_weights, "class_weights", DType::fp32, args.targets.vocab);
  check_array(context, args.row_weights, "row_weights", DType::fp32, rows);
  require(static_cast<bool>(args.out), "count_targets: out not given");
  check_array(context, args.out, "count_targets: out", DType::fp32, 1);
  run_on_device(
      context, [&] { cpu::count_targets(context, args); }, [&] { cuda::count_targets(context, args); });
}

void sum_rows(const Context& context, const SumRows& args) {
  const std::int64_t rows = args.targets.index.elements();
  check_targets(context, args.targets, rows);
  require((args.row_ce && args.row_z) || rows == 0, "sum_rows: row_ce and row_z must be given");
  check_array(context, args.row_ce, "row_ce", DType::fp32, rows);
  check_array(context, args.row_z, "row_z", DType::fp32, rows);
  check_array(context, args.row_weight, "row_weight", DType::fp32, rows);
  require(args.sums != nullptr, "sum_rows: sums not given");
  run_on_device(
      context, [&] { cpu::sum_rows(context, args); }, [&] { cuda::sum_rows(context, args); });
}

}  // namespace greyhound
