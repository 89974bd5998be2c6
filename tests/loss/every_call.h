// One call of each operation of the loss, in memory that is made beforehand, so that all of it can be made again, be
// captured, or run beside others.
#pragma once

#include <greyhound/loss/loss.h>
#include <tests/differences.h>
#include <tests/loss/selective_problem.h>

#include <deque>

namespace greyhound::test {

class EveryCall {
 public:
  // `options`: every option of cross-entropy is on. Work runs on the backend under test.
  EveryCall(const LinearProblem& p, bool options)
      : context_(test_context(2)),
        problem_(p),
        data_(p),
        selection_(p.rows, 2, p.vocab),
        logits_(p.dtype, Shape{p.rows, p.vocab}, p.vocab + 3, 1),
        class_weights_(DType::fp32, Shape{p.vocab}),
        row_weights_(DType::fp32, Shape{p.rows}),
        upstream_(vector(DType::fp32, {0.5})),
        denominator_(vector(DType::fp32, {16})),
        plan_(loss::plan_chunked_linear_loss(context_, p.shape(), plan_options(p))),
        scratch_(plan_.workspace_bytes),
        row_scratch_(loss::cross_entropy_workspace_bytes(context_, p.rows)),
        sums_(context_) {
    Normal normal(p.seed + 10);
    logits_.fill([&](auto, auto) { return 3 * normal(); });
    class_weights_.fill([](auto, std::int64_t j) { return 0.25 * static_cast<double>(1 + j % 7); });
    row_weights_.fill([](auto, std::int64_t j) { return 0.5 * static_cast<double>(1 + j % 4); });
    if (!options) return;
    options_.label_smoothing = 0.1f;
    options_.z_loss_multiplier = 1e-2f;
    options_.softcap = selective_.softcap = 5;
    options_.logit_scale = selective_.logit_scale = 0.7f;
    options_.class_weights = class_weights_;
    options_.row_weights = row_weights_;
  }

  // Other contents of the same memory.
  void set_targets(const Buffer& targets) { upload(data_.targets, targets); }
  void set_denominator(double value) { upload(denominator_, vector(DType::fp32, {value})); }

  void enqueue() {
    next_ = 0;
    sums_.sums.reset(context_);
    rows();
    linear();
  }

  LossSumsData sums() const { return sums_.data(); }
  // What the last enqueue() wrote, with every guard checked.
  const std::deque<Buffer>& results() {
    for (Buffer& result : results_) {
      (void)result.tensor();  // it has been written since the last look
      CHECK(result.guards_intact());
    }
    CHECK(scratch_.guards_intact());
    CHECK(row_scratch_.guards_intact());
    return results_;
  }

 private:
  static loss::PlanOptions plan_options(const LinearProblem& p) {
    loss::PlanOptions options;
    options.chunk_rows = (p.rows + 2) / 3;
    options.grad_weight_dtype = p.dtype;
    return options;
  }
  static void upload(Buffer& to, const Buffer& values) {
    for (std::int64_t i = 0; i < to.elements(); ++i) {
      if (to.dtype() == DType::int64) {
        to.set_index(0, i, values.host().as<std::int64_t>()[i]);
      } else {
        to.set(0, i, values[i]);
      }
    }
    (void)to.tensor();
  }
  // The next result's memory; made by the first enqueue().
  Buffer& result(DType dtype, const Shape& shape, std::int64_t row_stride = 0) {
    if (next_ == results_.size()) results_.emplace_back(dtype, shape, row_stride);
    return results_[next_++];
  }
  Tensor per_row(DType dtype = DType::fp32) { return result(dtype, Shape{problem_.rows}); }
  Tensor like_logits() { return result(problem_.dtype, logits_.shape(), problem_.vocab + 5); }
  Tensor like_index() { return result(DType::fp32, selection_.index.shape(), 4); }
  loss::LinearGradients gradients() {
    const LinearProblem& p = problem_;
    loss::LinearGradients to;
    to.input = loss::overwrite(result(p.dtype, Shape{p.rows, p.hidden}, p.hidden + 1));
    to.weight = loss::overwrite(result(p.dtype, Shape{p.stored(), p.hidden}));
    to.bias = loss::overwrite(result(DType::fp32, Shape{p.stored()}));
    return to;
  }
  loss::RowOutputs outputs() { return {per_row(), per_row(), per_row(), per_row(), per_row(DType::int32)}; }

  void rows() {
    loss::CrossEntropyOptions mean = options_;
    mean.denominator = denominator_;
    mean.upstream = upstream_;
    loss::cross_entropy(context_, logits_, data_.targets, like_logits(), mean, row_scratch_.workspace, sums_.sums,
                        outputs());
    // In place, divided by its own count.
    const Tensor work = result(problem_.dtype, logits_.shape());
    for (std::int64_t i = 0; i < problem_.rows; ++i) {
      copy(context_, work.row_range(i, 1), ConstTensor(logits_).row_range(i, 1));
    }
    loss::cross_entropy_with_grad(context_, work, data_.targets, options_, row_scratch_.workspace, sums_.sums);
    const Tensor lse = per_row();
    loss::selective_log_softmax(context_, logits_, selection_.index, like_index(), selective_, lse);
    loss::selective_log_softmax_backward(context_, selection_.grad_out, selection_.index, logits_, lse, like_logits(),
                                         selective_);
  }

  void linear() {
    loss::CrossEntropyOptions mean = options_;
    mean.denominator = denominator_;
    mean.upstream = upstream_;
    const loss::LinearInputs in{data_.inputs, data_.weight, data_.targets, data_.bias};
    Workspace& workspace = scratch_.workspace;
    const loss::LinearGradients first = gradients();
    loss::chunked_linear_cross_entropy(context_, plan_, in, mean, first, workspace, sums_.sums, outputs());
    loss::scale_gradients(context_, upstream_, {first.input.tensor, first.weight.tensor, first.bias.tensor});
    const loss::RowLoss halves = [this](const Context& context, const loss::LogitsTile& tile) {
      loss::scale_gradients(context, upstream_, {tile.logits});
      fill_bytes(context, tile.row_loss.data, 0, tile.row_loss.bytes());
    };
    loss::chunked_linear_loss(context_, plan_, {data_.inputs, data_.weight, data_.bias}, halves, gradients(), workspace,
                              sums_.sums);
    const loss::LinearIndex index{data_.inputs, data_.weight, selection_.index, data_.bias};
    const Tensor lse = per_row();
    loss::chunked_linear_selective_log_softmax(context_, plan_, index, like_index(), selective_, workspace, lse);
    loss::chunked_linear_selective_log_softmax_backward(context_, plan_, index, selection_.grad_out, lse, selective_,
                                                        gradients(), workspace);
  }

  Context context_;
  LinearProblem problem_;
  LinearData data_;
  Selection selection_;
  Buffer logits_, class_weights_, row_weights_, upstream_, denominator_;
  loss::CrossEntropyOptions options_;
  loss::SelectiveLogSoftmaxOptions selective_;
  loss::Plan plan_;
  Scratch scratch_, row_scratch_;
  Sums sums_;
  std::deque<Buffer> results_;
  std::size_t next_ = 0;
};

inline std::vector<Buffer> copies(const std::deque<Buffer>& results) { return {results.begin(), results.end()}; }

// How many results differ in a bit.
inline std::int64_t differing(const std::deque<Buffer>& results, const std::vector<Buffer>& others) {
  if (results.size() != others.size()) return static_cast<std::int64_t>(results.size() + others.size());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < others.size(); ++i) count += !results[i].same_bits(others[i]);
  return count;
}

// Both are the rounding of one exact result: apart by what logits and gradients of this dtype lose, relative to the
// largest.
inline void check_alike(DType dtype, const std::vector<Buffer>& results, const std::vector<Buffer>& expected) {
  REQUIRE(results.size() == expected.size());
  for (std::size_t r = 0; r < results.size(); ++r) {
    const Buffer &got = results[r], &want = expected[r];
    const double largest = largest_magnitude(want.values());
    std::int64_t wrong = 0;
    const double relative = want.dtype() == DType::int32 ? 0 : product_tolerance(dtype);
    for (std::int64_t i = 0; i < want.elements(); ++i) {
      if (std::fabs(got[i] - want[i]) <= relative * (largest + 1e-3)) continue;  // false for NaN
      if (wrong++ == 0) MESSAGE("element " << i << ": got " << got[i] << ", expected " << want[i]);
    }
    CAPTURE(r);
    CAPTURE(largest);
    CHECK(wrong == 0);
  }
}

}  // namespace greyhound::test
