// A chunked linear cross-entropy call for tests: inputs in a dtype, the fp64 answer beside it, and comparison.
#pragma once

#include <doctest/doctest.h>
#include <tests/loss/buffer.h>
#include <tests/reference/linear_cross_entropy.h>

namespace greyhound::test {

struct LinearProblem {
  std::int64_t rows, hidden, vocab;
  DType dtype = DType::fp32;
  std::int64_t padded_vocab = 0;  // 0: vocab
  bool with_bias = false;
  std::uint32_t seed = 1;
  double weight_scale = 1;  // of standard deviation weight_scale / sqrt(hidden)
  std::int64_t offset = 0;  // elements between an aligned address and each matrix

  std::int64_t stored() const { return padded_vocab == 0 ? vocab : padded_vocab; }
  loss::LinearShape shape() const { return {rows, hidden, vocab, dtype, padded_vocab}; }
};

// Everything that a call reads. Stored weight rows beyond the vocabulary are NaN: no product may use them.
struct LinearData {
  Buffer inputs, weight, bias, targets;

  explicit LinearData(const LinearProblem& p, std::int64_t ignore_every = 5)
      : inputs(p.dtype, Shape{p.rows, p.hidden}, p.hidden + 3, p.offset),
        weight(p.dtype, Shape{p.stored(), p.hidden}, 0, p.offset),
        bias(DType::fp32, Shape{p.stored()}, 0, p.offset),
        targets(DType::int64, Shape{p.rows}) {
    Normal normal(p.seed);
    const double scale = p.weight_scale / std::sqrt(static_cast<double>(p.hidden));
    inputs.fill([&](auto, auto) { return normal(); });
    weight.fill([&](std::int64_t v, auto) { return v < p.vocab ? scale * normal() : not_a_number; });
    bias.fill([&](auto, std::int64_t v) { return v < p.vocab ? 0.5 * normal() : not_a_number; });
    for (std::int64_t i = 0; i < p.rows; ++i) {
      targets.set_index(0, i, i % ignore_every == ignore_every - 1 ? -100 : (i * 7919 + 3) % p.vocab);
    }
  }
};

inline std::vector<double> first_rows(const Buffer& matrix, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<double> row = matrix.row(i, matrix.columns());
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

inline std::vector<double> optional_values(const ConstTensor& array) {
  if (!array) return {};
  const std::vector<unsigned char> bytes = bytes_of(array);
  std::vector<float> values(static_cast<std::size_t>(array.elements()));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

inline reference::Projection projection_of(const LinearProblem& p, const LinearData& data) {
  reference::Projection problem{p.rows, p.hidden, p.vocab, data.inputs.values(), first_rows(data.weight, p.vocab), {}};
  if (p.with_bias) problem.bias = data.bias.row(0, p.vocab);
  return problem;
}

// The same call in fp64, of the values that the buffers hold.
inline reference::LinearCrossEntropyResult reference_result(const LinearProblem& p, const LinearData& data,
                                                            const loss::CrossEntropyOptions& options) {
  reference::LinearCrossEntropy problem;
  static_cast<reference::Projection&>(problem) = projection_of(p, data);
  const auto* y = data.targets.host().as<std::int64_t>();
  problem.targets.assign(y, y + p.rows);
  problem.class_weights = optional_values(options.class_weights);
  problem.row_weights = optional_values(options.row_weights);
  problem.upstream = optional_values(options.upstream);
  if (problem.upstream.size() == 1) problem.upstream.assign(p.rows, problem.upstream[0]);
  problem.options = {options.ignore_index, options.label_smoothing, options.z_loss_multiplier, options.softcap,
                     options.logit_scale};
  if (options.denominator) {
    problem.denominator = optional_values(options.denominator)[0];
  } else if (options.reduction == loss::Reduction::mean) {
    problem.denominator = reference::linear_cross_entropy(problem).weight_sum;
  }
  return reference::linear_cross_entropy(problem);
}

// What a call wrote.
struct LinearResult {
  Buffer grad_input, grad_weight, grad_bias, row_loss;
  LossSumsData sums;
};

struct Wanted {
  bool input = true, weight = true, bias = false;
  bool accumulate = false;  // into gradients of `before`
  double before = 0;
};

// Plans, calls with a workspace of exactly the planned bytes full of NaN, and checks every guard.
// `call(context, plan, gradients, workspace, sums, result)` makes the call itself.
template <class Function>
LinearResult run_planned(const LinearProblem& p, loss::PlanOptions plan_options, const Wanted& wanted, int threads,
                         Function&& call) {
  const Context context = test_context(threads);
  plan_options.grad_input = wanted.input;
  plan_options.grad_weight = wanted.weight || wanted.bias;
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, p.shape(), plan_options);
  CHECK(plan.chunks == (p.rows + plan.chunk_rows - 1) / plan.chunk_rows);
  Scratch scratch(plan.workspace_bytes);
  Sums sums(context);

  LinearResult result;
  result.grad_input = Buffer(p.dtype, Shape{p.rows, p.hidden}, p.hidden + 5, p.offset);
  result.grad_weight = Buffer(plan_options.grad_weight_dtype, Shape{p.stored(), p.hidden}, p.hidden + 2, p.offset);
  result.grad_bias = Buffer(DType::fp32, Shape{p.stored()});
  result.row_loss = Buffer(DType::fp32, Shape{p.rows});
  if (wanted.accumulate) {
    for (Buffer* grad : {&result.grad_input, &result.grad_weight, &result.grad_bias}) {
      grad->fill([&](auto, auto) { return wanted.before; });
    }
  }
  loss::LinearGradients gradients;
  if (wanted.input) gradients.input = {result.grad_input, wanted.accumulate};
  if (wanted.weight) gradients.weight = {result.grad_weight, wanted.accumulate};
  if (wanted.bias) gradients.bias = {result.grad_bias, wanted.accumulate};
  call(context, plan, gradients, scratch.workspace, sums.sums, result);
  CHECK(scratch.guards_intact());
  CHECK(scratch.workspace.used() == 0);
  for (const Buffer* buffer : {&result.grad_input, &result.grad_weight, &result.grad_bias, &result.row_loss}) {
    CHECK(buffer->guards_intact());
  }
  result.sums = sums.data();
  return result;
}

inline LinearResult run_linear(const LinearProblem& p, LinearData data, const loss::CrossEntropyOptions& options = {},
                               const loss::PlanOptions& plan_options = {}, const Wanted& wanted = {}, int threads = 2) {
  const loss::LinearInputs in{data.inputs, data.weight, data.targets, p.with_bias ? data.bias.tensor() : Tensor()};
  return run_planned(p, plan_options, wanted, threads,
                     [&](const Context& context, const loss::Plan& plan, const loss::LinearGradients& gradients,
                         Workspace& workspace, loss::LossSums& sums, LinearResult& result) {
                       loss::chunked_linear_cross_entropy(context, plan, in, options, gradients, workspace, sums,
                                                          {result.row_loss});
                       CHECK(result.row_loss.written());
                     });
}

// loss(tile) for a callback that computes on the host, wherever the chunk is.
template <class Function>
void on_host(const Context& context, const loss::LogitsTile& tile, Function&& loss) {
  const Tensor& z = tile.logits;
  std::vector<unsigned char> logits(((z.rows() - 1) * z.row_stride + z.columns()) * size_of(z.dtype));
  std::vector<float> row_loss(z.rows());
  copy_bytes(context, logits.data(), Device::cpu(), z.data, z.device, logits.size());
  context.synchronize();
  loss::LogitsTile here = tile;
  here.logits = Tensor(logits.data(), z.dtype, z.shape, z.row_stride, Device::cpu());
  here.row_loss = Tensor(row_loss.data(), DType::fp32, tile.row_loss.shape);
  loss(here);
  copy_bytes(context, z.data, z.device, logits.data(), Device::cpu(), logits.size());
  copy_bytes(context, tile.row_loss.data, z.device, row_loss.data(), Device::cpu(), tile.row_loss.bytes());
  context.synchronize();
}

inline loss::PlanOptions chunks_of(std::int64_t rows) {
  loss::PlanOptions options;
  options.chunk_rows = rows;
  return options;
}

// Elements within relative * (sum of absolute products) of the exact ones, and half of fp16's smallest number.
inline void check_sums(const Buffer& got, const std::vector<double>& want, const std::vector<double>& bound,
                       double relative, double before = 0) {
  std::size_t wrong = 0;
  const double smallest = got.dtype() == DType::fp16 ? 0x1p-25 : 1e-30;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double value = got[static_cast<std::int64_t>(i)], error = std::fabs(value - (before + want[i]));
    if (error <= relative * (bound[i] + std::fabs(before)) + smallest) continue;  // false for NaN
    if (wrong++ == 0) {
      CAPTURE(i);
      CAPTURE(value);
      CAPTURE(before + want[i]);
      CHECK(error <= relative * (bound[i] + std::fabs(before)));
    }
  }
  CHECK(wrong == 0);
}

// 16-bit tiles round each logit (of magnitude up to about 4 here) and each gradient.
inline double product_tolerance(DType dtype) {
  return dtype == DType::fp32 ? 4e-6 : dtype == DType::bf16 ? 3e-2 : 4e-3;
}

inline void check_gradients(const LinearProblem& p, const LinearResult& got, const reference::ProjectionGradients& want,
                            const Wanted& wanted, double tolerance) {
  // The rounding of a fp32 sum grows like the root of its length.
  const auto summed = [&](std::int64_t terms) { return tolerance + 2e-7 * std::sqrt(static_cast<double>(terms)); };
  if (wanted.input) check_sums(got.grad_input, want.grad_input, want.input_bound, summed(p.vocab), wanted.before);
  if (wanted.weight) check_sums(got.grad_weight, want.grad_weight, want.weight_bound, summed(p.rows), wanted.before);
  if (wanted.bias) check_sums(got.grad_bias, want.grad_bias, want.bias_bound, tolerance, wanted.before);
  // Rows of the padding: 0, or what was there.
  for (std::int64_t v = p.vocab; v < p.stored(); ++v) {
    if (wanted.weight) {
      for (std::int64_t d = 0; d < p.hidden; ++d) CHECK(got.grad_weight.at(v, d) == wanted.before);
    }
    if (wanted.bias) CHECK(got.grad_bias[v] == wanted.before);
  }
}

inline void check_linear(const LinearProblem& p, const LinearResult& got,
                         const reference::LinearCrossEntropyResult& want, const Wanted& wanted = {}) {
  const double tolerance = product_tolerance(p.dtype);
  CHECK(got.sums.n_valid == want.n_valid);
  CHECK(std::fabs(got.sums.ce_sum - want.ce_sum) <= tolerance * (std::fabs(want.ce_sum) + 1e-3));
  CHECK(std::fabs(got.sums.z_sum - want.z_sum) <= 2 * tolerance * (std::fabs(want.z_sum) + 1e-3));
  CHECK(std::fabs(got.sums.weight_sum - want.weight_sum) <= 1e-6 * want.weight_sum);
  check_gradients(p, got, want, wanted, tolerance);
}

}  // namespace greyhound::test
