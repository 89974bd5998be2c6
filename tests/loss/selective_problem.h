// Selective log-softmax calls for tests: indices, gradients of outputs, and the fp64 answer beside them.
#pragma once

#include <tests/loss/linear_problem.h>
#include <tests/reference/selective_log_softmax.h>

namespace greyhound::test {

// Indices [N] (per_row 0) or [N, K] and grad_out of their shape. Every fifth row has no valid index; of K > 1, the last
// repeats the first.
struct Selection {
  Buffer index, grad_out;

  Selection(std::int64_t rows, std::int64_t per_row, std::int64_t vocab, DType grad_dtype = DType::fp32,
            double grad_scale = 1)
      : index(DType::int64, shape(rows, per_row), per_row == 0 ? 0 : per_row + 1),
        grad_out(grad_dtype, shape(rows, per_row), per_row == 0 ? 0 : per_row + 2) {
    Normal normal(77);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < count(); ++k) {
        const std::int64_t from = k > 0 && k == count() - 1 ? 0 : k;
        const bool ignored = i % 5 == 4 || (k == 1 && i % 3 == 2);
        set(index, i, k, ignored ? -100 : (i * 7919 + from * 104729 + 3) % vocab);
      }
    }
    grad_out.fill([&](auto, auto) { return grad_scale * normal(); });
  }

  std::int64_t count() const { return matrix() ? index.columns() : 1; }
  std::int64_t index_at(std::int64_t row, std::int64_t k) const {
    const ConstTensor t = index.host();
    return t.as<std::int64_t>()[matrix() ? row * t.row_stride + k : row];
  }
  std::vector<std::int64_t> indices_of(std::int64_t row) const {
    std::vector<std::int64_t> all;
    for (std::int64_t k = 0; k < count(); ++k) all.push_back(index_at(row, k));
    return all;
  }
  std::vector<double> grads_of(std::int64_t row) const {
    std::vector<double> all;
    for (std::int64_t k = 0; k < count(); ++k) all.push_back(matrix() ? grad_out.at(row, k) : grad_out[row]);
    return all;
  }
  // Element of another buffer of this shape.
  double of(const Buffer& values, std::int64_t row, std::int64_t k) const {
    return matrix() ? values.at(row, k) : values[row];
  }
  bool matrix() const { return index.shape().rank() == 2; }

 private:
  static Shape shape(std::int64_t rows, std::int64_t per_row) {
    return per_row == 0 ? Shape{rows} : Shape{rows, per_row};
  }
  void set(Buffer& buffer, std::int64_t row, std::int64_t k, std::int64_t value) {
    matrix() ? buffer.set_index(row, k, value) : buffer.set_index(0, row, value);
  }
};

inline reference::SelectiveOptions reference_options(const loss::SelectiveLogSoftmaxOptions& options) {
  return {options.ignore_index, options.softcap, options.logit_scale};
}

// Log-probabilities of a chunked forward, and the gradients of its backward.
struct SelectiveResult {
  Buffer out, lse;
  LinearResult gradients;
};

inline SelectiveResult run_selective(const LinearProblem& p, LinearData data, Selection selection,
                                     const loss::SelectiveLogSoftmaxOptions& options = {},
                                     const loss::PlanOptions& plan_options = {}, const Wanted& wanted = {},
                                     int threads = 2) {
  const ConstTensor index = selection.index.tensor();
  SelectiveResult result;
  result.out = Buffer(selection.grad_out.dtype(), index.shape, selection.matrix() ? selection.count() + 4 : 0);
  result.lse = Buffer(DType::fp32, Shape{p.rows});
  const loss::LinearIndex in{data.inputs, data.weight, index, p.with_bias ? data.bias.tensor() : Tensor()};
  result.gradients = run_planned(
      p, plan_options, wanted, threads,
      [&](const Context& context, const loss::Plan& plan, const loss::LinearGradients& gradients, Workspace& workspace,
          loss::LossSums&, LinearResult&) {
        loss::chunked_linear_selective_log_softmax(context, plan, in, result.out, options, workspace, result.lse);
        loss::chunked_linear_selective_log_softmax_backward(context, plan, in, selection.grad_out, result.lse, options,
                                                            gradients, workspace);
      });
  CHECK(result.out.guards_intact());
  CHECK(result.out.written());
  CHECK(result.lse.written());
  return result;
}

inline void check_selective(const LinearProblem& p, const LinearData& data, const Selection& selection,
                            const SelectiveResult& got, const loss::SelectiveLogSoftmaxOptions& options = {},
                            const Wanted& wanted = {}) {
  const double tolerance = product_tolerance(p.dtype);
  const reference::ProjectionGradients want =
      projection_gradients(projection_of(p, data), [&](std::int64_t i, const std::vector<double>& logits) {
        const auto row = reference::selective_log_softmax_row(logits, selection.indices_of(i), selection.grads_of(i),
                                                              reference_options(options));
        for (std::int64_t k = 0; k < selection.count(); ++k) {
          const double value = selection.of(got.out, i, k), exact = row.logprob[k];
          CHECK(value <= 0);
          CHECK(std::fabs(value - exact) <= tolerance * (1 + std::fabs(exact)) + ulp(got.out.dtype(), exact));
        }
        CHECK(std::fabs(got.lse[i] - row.lse) <= tolerance * (1 + std::fabs(row.lse)));
        return row.grad;
      });
  check_gradients(p, got.gradients, want, wanted, tolerance);
}

}  // namespace greyhound::test
