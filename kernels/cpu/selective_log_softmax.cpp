#include <greyhound/kernels/selective_log_softmax.h>

#include <greyhound/kernels/cpu/class_indices.h>
#include <greyhound/kernels/cpu/logit_row.h>

namespace greyhound::cpu {

namespace {

template <class T>
float logit_at(const T* logits, std::int64_t column, const LogitTransform& transform) {
  // Through the same vector code as the row's maximum, so that no rounding puts a logit above it.
  alignas(64) float block[block_granule];
  const int length = load_block(logits + column, 1, block);
  if (!transform.plain()) transform_block(block, length, transform, nullptr);
  return block[0];
}

template <class T, class Out>
void one_row(const SelectiveLogSoftmax& args, const ClassIndices& indices, std::int64_t row) {
  const LogitTransform transform{args.logit_scale, args.softcap};
  const T* logits = static_cast<const T*>(args.logits.data) + row * args.logits.row_stride;
  Out* out = static_cast<Out*>(args.out.data) + row * (args.out.shape.rank() == 2 ? args.out.row_stride : 1);

  const bool any_valid = indices.any_valid(row);
  RowStatistics stats;
  double log_sum = 0, lse = 0;
  if (any_valid) {
    stats = row_statistics(logits, args.vocab, -1, transform, {});
    log_sum = stats.log_sum();
    lse = stats.max + log_sum;
  }
  for (std::int64_t k = 0; k < indices.per_row; ++k) {
    const std::int64_t index = indices.at(row, k);
    float value = indices.ignored(index) ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    if (indices.valid(index)) {
      const double above = static_cast<double>(logit_at(logits, index, transform)) - stats.max;
      value = static_cast<float>(above - log_sum);
    }
    out[k] = from_float<Out>(value);
  }
  if (args.lse) static_cast<float*>(args.lse.data)[row] = static_cast<float>(lse);
}

}  // namespace

void selective_log_softmax_rows(const Context& context, const SelectiveLogSoftmax& args) {
  const ClassIndices indices(args.index, args.vocab, args.ignore_index);
  const std::int64_t rows = args.logits.rows();
  dispatch(args.logits.dtype, "selective_log_softmax: logits", [&](auto logits_tag) {
    dispatch(args.out.dtype, "selective_log_softmax: out", [&](auto out_tag) {
      using T = typename decltype(logits_tag)::type;
      using Out = typename decltype(out_tag)::type;
#pragma omp parallel for num_threads(context.threads()) schedule(static)
      for (std::int64_t row = 0; row < rows; ++row) one_row<T, Out>(args, indices, row);
    });
  });
  if (args.errors != nullptr) cpu::check_indices(context, {args.index, args.vocab, args.ignore_index, args.errors});
}

void check_indices(const Context&, const CheckIndices& args) {
  const ClassIndices indices(args.index, args.vocab, args.ignore_index);
  ErrorWord& errors = *args.errors;
  for (std::int64_t row = 0; row < args.index.shape[0]; ++row) {
    for (std::int64_t k = 0; k < indices.per_row; ++k) {
      const std::int64_t index = indices.at(row, k);
      if (indices.ignored(index) || indices.valid(index)) continue;
      if (errors.count++ == 0) {
        errors.first_row = row;
        errors.value = index;
      }
    }
  }
}

}  // namespace greyhound::cpu
