#include <greyhound/kernels/cpu/class_indices.h>
#include <greyhound/kernels/cpu/logit_row.h>
#include <greyhound/kernels/selective_log_softmax.h>

namespace greyhound::cpu {

namespace {

// Sums of exp(z - lse) over a row.
struct RowSums {
  std::int64_t peak_class = -1;  // the valid index with the largest term
  double peak = 0;               // its term
  double others = 0;             // the terms of all other columns

  double sum() const { return others + peak; }
  void add_class(std::int64_t index, double term) {
    if (term > peak) {
      std::swap(term, peak);
      peak_class = index;
    }
    others += term;  // a NaN too
  }
};

// Valid indices of a row, each with what its gradient needs of the others.
template <class G>
struct RowIndices {
  const SelectiveLogSoftmaxBackward& args;
  const ClassIndices& indices;
  std::int64_t row;

  // function(index, grad_out) for each valid one.
  template <class Function>
  void each(Function&& function) const {
    for (std::int64_t k = 0; k < indices.per_row; ++k) {
      const std::int64_t index = indices.at(row, k);
      if (indices.valid(index)) function(index, value_beside<G>(args.grad_out, row, k));
    }
  }
  // The same for those in columns begin .. begin + count; `function(column - begin, index)`.
  template <class Function>
  void each_in(std::int64_t begin, std::int64_t count, Function&& function) const {
    for (std::int64_t k = 0; k < indices.per_row; ++k) {
      const std::int64_t index = indices.at(row, k);
      if (indices.valid(index) && index >= begin && index < begin + count) function(index - begin, index);
    }
  }
  // dz of a class with probability p, the others' being `rest`.
  double gradient(std::int64_t index, double p, double rest) const {
    double own = 0, other = 0;
    each([&](std::int64_t other_index, float grad_out) { (other_index == index ? own : other) += grad_out; });
    return own * rest - other * p;
  }
};

template <class T, class G>
RowSums row_sums(const T* logits, const RowIndices<G>& row, const LogitTransform& transform, float lse) {
  RowSums sums;
  LogitBlock storage;
  float* block = storage.values;
  const std::int64_t vocab = row.args.vocab;
  for (std::int64_t begin = 0; begin < vocab; begin += block_columns) {
    const int count = static_cast<int>(std::min<std::int64_t>(block_columns, vocab - begin));
    const int length = load_block(logits + begin, count, block);
    if (!transform.plain()) transform_block(block, length, transform, nullptr);
    row.each_in(begin, count, [&](std::int64_t j, std::int64_t index) {
      sums.add_class(index, vec::exp(block[j] - lse));
      block[j] = -infinity;  // an index that comes again finds nothing
    });
    sums.others += block_exp_sum(block, length, lse);
  }
  return sums;
}

template <class T, class G>
void one_row(const SelectiveLogSoftmaxBackward& args, const ClassIndices& indices, std::int64_t row_number) {
  const RowIndices<G> row{args, indices, row_number};
  const T* logits = static_cast<const T*>(args.logits.data) + row_number * args.logits.row_stride;
  T* grad = static_cast<T*>(args.grad.data) + row_number * args.grad.row_stride;
  if (!indices.any_valid(row_number)) {
    std::fill(grad, grad + args.grad.columns(), T{});
    return;
  }
  const LogitTransform transform{args.logit_scale, args.softcap};
  const float lse = static_cast<const float*>(args.lse.data)[row_number];
  const RowSums sums = row_sums(logits, row, transform, lse);
  const double grad_scale = args.grad_scale ? *args.grad_scale.as<float>() : 1.0f;
  const double scale = grad_scale * args.logit_scale, sum = sums.sum();
  double total = 0;
  row.each([&](std::int64_t, float grad_out) { total += grad_out; });
  // Adding 0 turns -0 into +0: a grad_out of 0 gives zeros without a sign.
  const float factor = static_cast<float>(-scale * total / sum) + 0.0f;

  LogitBlock z_storage, slope_storage, gradient_storage;
  float *z = z_storage.values, *gradients = gradient_storage.values;
  float* slopes = transform.cap > 0 ? slope_storage.values : nullptr;
  for (std::int64_t begin = 0; begin < args.vocab; begin += block_columns) {
    const int count = static_cast<int>(std::min<std::int64_t>(block_columns, args.vocab - begin));
    const int length = load_block(logits + begin, count, z);
    if (!transform.plain()) transform_block(z, length, transform, slopes);
#pragma omp simd
    for (int j = 0; j < length; ++j) {
      const float gradient = factor * vec::exp(z[j] - lse);
      gradients[j] = z[j] == -infinity ? 0.0f : gradient;
    }
    row.each_in(begin, count, [&](std::int64_t j, std::int64_t index) {
      const double p = vec::exp(z[j] - lse) / sum;
      const double rest = index == sums.peak_class ? sums.others / sum : 1 - p;
      gradients[j] = static_cast<float>(scale * row.gradient(index, p, rest)) + 0.0f;
    });
    if (slopes != nullptr) {
#pragma omp simd
      for (int j = 0; j < length; ++j) gradients[j] *= slopes[j];
    }
    for (int j = 0; j < count; ++j) grad[begin + j] = from_float<T>(gradients[j]);
  }
  std::fill(grad + args.vocab, grad + args.grad.columns(), T{});
}

}  // namespace

void selective_log_softmax_backward_rows(const Context& context, const SelectiveLogSoftmaxBackward& args) {
  const ClassIndices indices(args.index, args.vocab, args.ignore_index);
  const std::int64_t rows = args.logits.rows();
  dispatch(args.logits.dtype, "selective_log_softmax_backward: logits", [&](auto logits_tag) {
    dispatch(args.grad_out.dtype, "selective_log_softmax_backward: grad_out", [&](auto grad_tag) {
      using T = typename decltype(logits_tag)::type;
      using G = typename decltype(grad_tag)::type;
#pragma omp parallel for num_threads(context.threads()) schedule(static)
      for (std::int64_t row = 0; row < rows; ++row) one_row<T, G>(args, indices, row);
    });
  });
}

}  // namespace greyhound::cpu
