// The gradient of selective log-softmax, the chunked calls around it, losses of the caller's, and scale_gradients on
// CUDA against the same calls on the CPU.
#include <greyhound/loss/loss.h>
#include <tests/cuda_support.h>

#include <limits>
#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Case {
  DType dtype = DType::bf16, grad_dtype = DType::fp32, index_dtype = DType::int64;
  std::int64_t rows = 7, vocab = 33, padding = 3, per_row = 0;  // per_row 0: index [N]
  std::int64_t offset = 1;
  bool in_place = false;
  double softcap = 0, scale = 1;
};

struct Result {
  HostTensor grad;
  ErrorWord errors{};
};

Result run(const Context& context, const Case& c) {
  const std::int64_t columns = c.vocab + c.padding;
  HostTensor logits = HostTensor::random(c.dtype, {c.rows, columns}, 21, -6, 6, columns + 3, c.offset);
  for (std::int64_t j = 0; j < columns; ++j) logits.set(columns + j, not_a_number);  // a row that is not read
  logits.set(4 * columns, 20);                                                       // a confident row
  for (std::int64_t j = 1; j < c.vocab; j += 2) logits.set(5 * columns + j, -infinity);
  const HostTensor index = hard_indices(c.index_dtype, c.rows, c.per_row, c.vocab);
  const HostTensor grad_out = HostTensor::random(c.grad_dtype, index.shape(), 22);
  const Placed device_logits(context, logits), device_index(context, index), device_grad_out(context, grad_out),
      out(context, HostTensor(DType::fp32, index.shape())), lse(context, HostTensor(DType::fp32, {c.rows})),
      grad(context, HostTensor(c.dtype, {c.rows, columns}, columns + 3, c.offset));
  const DeviceMemory errors(context, sizeof(ErrorWord), 0);
  loss::SelectiveLogSoftmaxOptions options;
  options.vocab = c.vocab;
  options.softcap = static_cast<float>(c.softcap);
  options.logit_scale = static_cast<float>(c.scale);
  loss::selective_log_softmax(context, device_logits, device_index, out, options, lse);
  options.errors = static_cast<ErrorWord*>(errors.data());
  const Placed& to = c.in_place ? device_logits : grad;
  loss::selective_log_softmax_backward(context, device_grad_out, device_index, device_logits, lse, to, options);
  context.synchronize();
  Result result{to.back()};
  std::memcpy(&result.errors, errors.download().data(), sizeof result.errors);
  return result;
}

void compare(const Case& c) {
  CAPTURE(std::string(name_of(c.dtype)));
  CAPTURE(c.vocab);
  CAPTURE(c.per_row);
  CAPTURE(c.softcap);
  const Result expected = run(Context::cpu(), c), got = run(device_context(), c);
  // Terms of several indices may cancel: their size is about 2 K.
  check_agree("grad", got.grad, expected.grad, 2e-5, c.per_row > 1 ? 2e-6 : 1e-9);
  CHECK(got.errors.count == expected.errors.count);
  CHECK(got.errors.first_row == expected.errors.first_row);
  CHECK(got.errors.value == expected.errors.value);
  const Result again = run(device_context(), c);
  CHECK(again.grad.bytes() == got.grad.bytes());
}

struct Linear {
  HostTensor out, lse, grad_input, grad_weight, grad_bias;
  ErrorWord errors{};
};

Linear run_linear(const Context& context, DType dtype, std::int64_t per_row, std::int64_t chunk_rows) {
  Case c;
  c.dtype = dtype;
  c.rows = 13;
  c.vocab = 1031;
  c.per_row = per_row;
  const std::int64_t hidden = 20, stored = 1040;
  HostTensor values = HostTensor::random(dtype, {c.rows, hidden}, 31, -1, 1);
  for (std::int64_t j = 0; j < hidden; ++j) values.set(hidden + j, not_a_number);  // row 1 has no valid index
  const HostTensor index = hard_indices(c.index_dtype, c.rows, c.per_row, c.vocab);
  const Placed inputs(context, values), weight(context, HostTensor::random(dtype, {stored, hidden}, 32, -0.5, 0.5)),
      bias(context, HostTensor::random(DType::fp32, {stored}, 33, -0.5, 0.5)), device_index(context, index),
      grad_out(context, HostTensor::random(DType::fp32, index.shape(), 34)),
      out(context, HostTensor(DType::fp32, index.shape())), lse(context, HostTensor(DType::fp32, {c.rows})),
      grad_input(context, HostTensor(dtype, {c.rows, hidden})),
      grad_weight(context, HostTensor(DType::fp32, {stored, hidden})),
      grad_bias(context, HostTensor(DType::fp32, {stored}));
  const DeviceMemory errors(context, sizeof(ErrorWord), 0);
  loss::PlanOptions plan_options;
  plan_options.chunk_rows = chunk_rows;
  const loss::Plan plan =
      loss::plan_chunked_linear_loss(context, {c.rows, hidden, c.vocab, dtype, stored}, plan_options);
  GuardedWorkspace scratch(context, plan.workspace_bytes);
  loss::SelectiveLogSoftmaxOptions options;
  options.errors = static_cast<ErrorWord*>(errors.data());
  const loss::LinearIndex in{inputs, weight, device_index, bias};
  loss::chunked_linear_selective_log_softmax(context, plan, in, out, options, scratch.workspace, lse);
  loss::chunked_linear_selective_log_softmax_backward(
      context, plan, in, grad_out, lse, options,
      {loss::overwrite(grad_input), loss::overwrite(grad_weight), loss::overwrite(grad_bias)}, scratch.workspace);
  context.synchronize();
  CHECK(scratch.intact());
  Linear result{out.back(), lse.back(), grad_input.back(), grad_weight.back(), grad_bias.back()};
  std::memcpy(&result.errors, errors.download().data(), sizeof result.errors);
  return result;
}

double largest(const HostTensor& tensor) {
  double most = 0;
  for (double value : tensor.values()) most = std::max(most, std::isfinite(value) ? std::fabs(value) : 0);
  return most;
}

}  // namespace

TEST_CASE("selective_log_softmax_backward on CUDA: dtypes, vocabularies, indices, options" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t vocab : {1, 2, 7, 33, 1025, 50257}) {
      for (std::int64_t per_row : {0, 1, 2, 5}) {
        for (bool capped : {false, true}) {
          Case c;
          c.dtype = dtype;
          c.vocab = vocab;
          c.per_row = per_row;
          c.grad_dtype = per_row % 2 == 0 ? DType::fp32 : dtype;
          c.index_dtype = per_row == 1 ? DType::int32 : DType::int64;
          c.in_place = capped != (per_row == 2);
          c.offset = per_row == 5 ? 0 : 1;
          if (capped) c.softcap = 5;
          if (capped) c.scale = 0.7;
          compare(c);
        }
      }
    }
  }
}

TEST_CASE("chunked_linear_selective_log_softmax on CUDA: values and gradients" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t per_row : {0, 1, 3}) {
      for (std::int64_t chunk_rows : {1, 5, 100}) {
        CAPTURE(std::string(name_of(dtype)));
        CAPTURE(per_row);
        CAPTURE(chunk_rows);
        const Linear expected = run_linear(Context::cpu(), dtype, per_row, chunk_rows);
        const Linear got = run_linear(device_context(), dtype, per_row, chunk_rows);
        const double relative = dtype == DType::bf16 ? 1e-2 : dtype == DType::fp16 ? 2e-3 : 5e-6;
        check_agree("out", got.out, expected.out, relative);
        check_agree("lse", got.lse, expected.lse, relative);
        check_agree("grad_input", got.grad_input, expected.grad_input, 1e-5, relative * largest(expected.grad_input));
        check_agree("grad_weight", got.grad_weight, expected.grad_weight, 1e-5,
                    relative * largest(expected.grad_weight));
        check_agree("grad_bias", got.grad_bias, expected.grad_bias, 1e-5, relative * largest(expected.grad_bias));
        CHECK(got.errors.count == expected.errors.count);
        CHECK(got.errors.first_row == expected.errors.first_row);
        CHECK(got.errors.value == expected.errors.value);
      }
    }
  }
}

TEST_CASE("chunked_linear_loss on CUDA: a callback that enqueues library calls, and one that throws" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  // The gradient of sum(z) is 1: here the loss of a row is 0 and its gradient the logits themselves.
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    HostTensor grads[2];
    double counts[2] = {};
    int side = 0;
    for (const Context& context : {Context::cpu(), device_context()}) {
      const Placed inputs(context, HostTensor::random(dtype, {11, 24}, 51, -1, 1)),
          weight(context, HostTensor::random(dtype, {40, 24}, 52, -1, 1)),
          grad_weight(context, HostTensor(DType::fp32, {40, 24})), factor(context, HostTensor::of(DType::fp32, {0.5}));
      loss::PlanOptions options;
      options.chunk_rows = 4;
      const loss::Plan plan = loss::plan_chunked_linear_loss(context, {11, 24, 40, dtype}, options);
      GuardedWorkspace scratch(context, plan.workspace_bytes);
      const DeviceMemory storage(context, loss::LossSums::bytes, 0);
      loss::LossSums sums(context, storage.data());
      const loss::LinearGradients gradients{{}, loss::overwrite(grad_weight), {}};
      const loss::RowLoss throwing = [](const Context&, const loss::LogitsTile& tile) {
        if (tile.first_row > 0) throw_runtime("of the callback");
      };
      CHECK_THROWS_WITH_AS(
          loss::chunked_linear_loss(context, plan, {inputs, weight, {}}, throwing, gradients, scratch.workspace, sums),
          doctest::Contains("of the callback"), Error);
      const loss::RowLoss halves = [&](const Context& in, const loss::LogitsTile& tile) {
        loss::scale_gradients(in, factor.tensor(), {tile.logits});
        fill_bytes(in, tile.row_loss.data, 0, tile.row_loss.bytes());
      };
      loss::chunked_linear_loss(context, plan, {inputs, weight, {}}, halves, gradients, scratch.workspace, sums);
      const loss::Report report = sums.read(context);
      CHECK(report.ce_sum == 0);
      CHECK(report.nonfinite_rows == 0);
      CHECK(scratch.intact());
      counts[side] = static_cast<double>(report.n_valid);
      grads[side++] = grad_weight.back();
    }
    CHECK(counts[0] == 11);
    CHECK(counts[1] == 11);
    const double relative = dtype == DType::bf16 ? 1e-2 : dtype == DType::fp16 ? 2e-3 : 5e-6;
    check_agree("grad_weight", grads[1], grads[0], 1e-5, relative * largest(grads[0]));
  }
}

TEST_CASE("scale_gradients on CUDA: the CPU's bits, strides, 1 and 0" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t columns : {1, 7, 300, 70000}) {
      for (std::int64_t gap : {0, 3}) {
        for (double scalar : {0.3, 1.0, 0.0}) {
          HostTensor results[2];
          int side = 0;
          for (const Context& context : {Context::cpu(), device_context()}) {
            HostTensor host = HostTensor::random(dtype, {3, columns}, 61, -2, 2, columns + gap, 1);
            if (scalar != 0.3) host.set(0, infinity);
            const Placed gradient(context, host), factor(context, HostTensor::of(DType::fp32, {scalar}));
            loss::scale_gradients(context, factor.tensor(), {gradient.tensor(), Tensor()});
            context.synchronize();
            results[side++] = gradient.back();
            if (scalar == 1) CHECK(results[side - 1].bytes() == host.bytes());
          }
          CAPTURE(columns);
          CAPTURE(scalar);
          CHECK(results[1].bytes() == results[0].bytes());
        }
      }
    }
  }
}
