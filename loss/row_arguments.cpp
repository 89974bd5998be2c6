#include <greyhound/loss/row_arguments.h>

namespace greyhound::loss {

namespace {

// Elements first .. first + count of an optional array of one value per row.
template <class Void>
BasicTensor<Void> part(const BasicTensor<Void>& array, std::int64_t first, std::int64_t count) {
  return array ? array.slice(first, Shape{count}) : array;
}

void require_rows(const ConstTensor& array, const char* name, DType dtype, std::int64_t rows) {
  if (!array) return;
  require(array.dtype == dtype, name, ": expected ", name_of(dtype), ", got ", name_of(array.dtype));
  require(array.elements() == rows && array.contiguous(), name, ": expected ", rows, " dense values, got ",
          to_string(array.shape));
}

void check_scalars(const CrossEntropyOptions& options, std::int64_t rows) {
  if (options.upstream) {
    const bool per_row = options.upstream.elements() == rows && options.reduction == Reduction::none;
    require(options.upstream.elements() == 1 || per_row, "upstream: expected one value, or one per row with ",
            "Reduction::none (", rows, " rows), got ", to_string(options.upstream.shape));
    require_rows(options.upstream, "upstream", DType::fp32, options.upstream.elements());
  }
  require(!options.denominator || options.reduction == Reduction::mean,
          "denominator: only Reduction::mean divides; leave it out with sum and none");
  require_rows(options.denominator, "denominator", DType::fp32, 1);
}

}  // namespace

ConstTensor as_vector(const ConstTensor& tensor, const char* name) {
  require(tensor.contiguous(), name, ": expected dense values, got ", to_string(tensor.shape), " with row stride ",
          tensor.row_stride);
  return ConstTensor(tensor.data, tensor.dtype, Shape{tensor.elements()}, tensor.device);
}

RowArguments::RowArguments(const ConstTensor& targets, std::int64_t rows, std::int64_t vocab,
                           const CrossEntropyOptions& options, const RowOutputs& outputs, const RowResults& results)
    : targets_(as_vector(targets, "targets")),
      rows_(rows),
      vocab_(vocab),
      options_(options),
      outputs_(outputs),
      results_(results) {
  require(targets_.elements() == rows, "targets: expected ", rows, ", one per row, got ", to_string(targets.shape));
  check_scalars(options, rows);
  require_rows(options.class_weights, "class_weights", DType::fp32, vocab);
  require_rows(options.row_weights, "row_weights", DType::fp32, rows);
  require_rows(outputs.loss, "rows.loss", DType::fp32, rows);
  require_rows(outputs.lse, "rows.lse", DType::fp32, rows);
  require_rows(outputs.target_logprob, "rows.target_logprob", DType::fp32, rows);
  require_rows(outputs.entropy, "rows.entropy", DType::fp32, rows);
  require_rows(outputs.argmax, "rows.argmax", DType::int32, rows);
  if (options.reduction == Reduction::mean) {
    denominator_ = options.denominator ? options.denominator : ConstTensor(results.denominator);
  }
}

void RowArguments::prepare_denominator(const Context& context) {
  if (options_.reduction != Reduction::mean || options_.denominator) return;
  count_targets(context, {targets(), options_.class_weights, options_.row_weights, results_.denominator});
}

Targets RowArguments::targets(std::int64_t first, std::int64_t count) const {
  return {targets_.slice(first, Shape{count}), vocab_, options_.ignore_index};
}

CrossEntropyRows RowArguments::range(std::int64_t first, const ConstTensor& logits, const Tensor& grad) const {
  const std::int64_t count = logits.rows();
  CrossEntropyRows args;
  args.logits = logits;
  args.targets = targets(first, count);
  args.grad = grad;
  args.row_ce = part(results_.ce, first, count);
  args.row_z = part(results_.z, first, count);
  args.row_weight = part(results_.weight, first, count);
  args.loss = part(outputs_.loss, first, count);
  args.lse = part(outputs_.lse, first, count);
  args.target_logprob = part(outputs_.target_logprob, first, count);
  args.entropy = part(outputs_.entropy, first, count);
  args.argmax = part(outputs_.argmax, first, count);
  args.class_weights = options_.class_weights;
  args.row_weights = part(options_.row_weights, first, count);
  args.upstream = options_.upstream.elements() == 1 ? options_.upstream : part(options_.upstream, first, count);
  args.denominator = grad ? denominator_ : ConstTensor();
  args.z_loss_multiplier = options_.z_loss_multiplier;
  args.label_smoothing = options_.label_smoothing;
  args.softcap = options_.softcap;
  args.logit_scale = options_.logit_scale;
  return args;
}

void RowArguments::add_to(const Context& context, LossSums& sums) const {
  sum_rows(context, {results_.ce, results_.z, results_.weight, targets(), sums.data()});
}

}  // namespace greyhound::loss
