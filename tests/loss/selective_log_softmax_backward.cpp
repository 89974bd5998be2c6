#include <tests/loss/selective_problem.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

// The gradient in another buffer, after the same call in place has given the same bits.
Buffer backward(Buffer logits, Buffer index, Buffer grad_out, const loss::SelectiveLogSoftmaxOptions& options = {},
                int threads = 2) {
  const Context context = test_context(threads);
  Buffer lse(DType::fp32, Shape{logits.rows()}), out(DType::fp32, index.tensor().shape);
  Buffer grad(logits.dtype(), logits.tensor().shape, logits.columns() + 5);
  loss::SelectiveLogSoftmaxOptions forward = options;
  forward.errors = nullptr;
  loss::selective_log_softmax(context, logits, index, out, forward, lse);
  loss::selective_log_softmax_backward(context, grad_out, index, logits, lse, grad, options);
  loss::selective_log_softmax_backward(context, grad_out, index, logits, lse, logits.tensor(), forward);
  CHECK(grad.guards_intact());
  CHECK(logits.guards_intact());
  CHECK(grad.same_bits(logits));
  return grad;
}

Buffer backward_row(DType dtype, const std::vector<double>& logits, const std::vector<std::int64_t>& index,
                    const std::vector<double>& grad_out, const loss::SelectiveLogSoftmaxOptions& options = {}) {
  Buffer indices(DType::int32, Shape{1, static_cast<std::int64_t>(index.size())});
  for (std::size_t k = 0; k < index.size(); ++k) indices.set_index(0, static_cast<std::int64_t>(k), index[k]);
  return backward(matrix(dtype, 1, logits), indices, matrix(DType::fp32, 1, grad_out), options);
}

void check_row(const Buffer& got, std::int64_t row, const reference::SelectiveRow& want, double relative = 1e-5) {
  std::int64_t wrong = 0;
  for (std::size_t j = 0; j < want.grad.size(); ++j) {
    const double value = got.at(row, static_cast<std::int64_t>(j));
    const double rounding = got.dtype() == DType::fp32 ? 0 : ulp(got.dtype(), want.grad[j]);
    if (std::fabs(value - want.grad[j]) <= relative * want.bound[j] + rounding + 1e-37) continue;
    if (wrong++ > 0) continue;
    CAPTURE(row);
    CAPTURE(j);
    CAPTURE(value);
    CHECK(value == want.grad[j]);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: [N] and [N, K] against fp64, every dtype and option") {
  const std::int64_t rows = 6;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {1, 7, 130, 1029}) {
      Normal normal(13);
      Buffer logits(dtype, Shape{rows, vocab + 3}, vocab + 6, 1);
      logits.fill([&](auto, std::int64_t j) { return j < vocab ? 4 * normal() : not_a_number; });
      for (const std::int64_t per_row : {0, 1, 2, 3, 5}) {
        for (const DType grad_dtype : {DType::fp32, dtype}) {
          for (const bool capped : {false, true}) {
            const Selection selection(rows, per_row, vocab, grad_dtype);
            loss::SelectiveLogSoftmaxOptions options;
            options.vocab = vocab;
            if (capped) options.softcap = 5;
            if (capped) options.logit_scale = 0.7f;
            const Buffer got = backward(logits, selection.index, selection.grad_out, options);
            CAPTURE(vocab);
            CAPTURE(per_row);
            for (std::int64_t i = 0; i < rows; ++i) {
              check_row(got, i,
                        reference::selective_log_softmax_row(logits.row(i, vocab), selection.indices_of(i),
                                                             selection.grads_of(i), reference_options(options)));
              for (std::int64_t j = vocab; j < vocab + 3; ++j) CHECK(got.at(i, j) == 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: the same index twice") {
  const std::vector<double> p{.0320586, .0871443, .2368828, .6439143};
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const Buffer got = backward_row(dtype, {1, 2, 3, 4}, {3, 3}, {1, 1});
    for (int j = 0; j < 4; ++j) {
      const double want = 2 * ((j == 3) - p[j]);
      CHECK(std::fabs(got[j] - want) <= 1e-6 + (dtype == DType::fp32 ? 0 : ulp(dtype, want)));
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: a confident row keeps its precision") {
  // 1 - p is 0 in fp32 from a margin of 17, in fp64 from one of 37.
  const double margins[] = {12, 15, 20, 30, 40};
  const double rest[] = {6.1441746e-6, 3.0590223e-7, 2.0611536e-9, 9.3576230e-14, 4.2483543e-18};
  for (int i = 0; i < 5; ++i) {
    const Buffer one = backward_row(DType::fp32, {margins[i], 0}, {0}, {1});
    CHECK(std::fabs(one[0] - rest[i]) <= 1e-5 * rest[i]);
    CHECK(std::fabs(one[1] + rest[i]) <= 1e-5 * rest[i]);
    // Twice the confident class and once the other, whose term outweighs: 2 (1 - p) - 3 p, and its negative.
    const Buffer three = backward_row(DType::fp32, {margins[i], 0}, {0, 1, 0}, {1, 3, 1});
    CHECK(std::fabs(three[0] - (2 * rest[i] - 3 * (1 - rest[i]))) <= 3e-6);
    // The other class has no weight: all of it hangs on 1 - p.
    const Buffer two = backward_row(DType::fp32, {margins[i], 0, -1}, {0, 2, 0}, {1, 0, 1});
    const double others = std::exp(-margins[i]) * (1 + std::exp(-1.0)), sum = 1 + others;
    CHECK(std::fabs(two[0] - 2 * others / sum) <= 1e-5 * 2 * others / sum);
  }
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: a large common offset") {
  // lse is rounded to 1/8 there; the probabilities are not.
  const double base = 1 << 20;
  const Buffer got = backward_row(DType::fp32, {base, base + 2}, {0}, {1});
  const double p = 1 / (1 + std::exp(2.0));
  CHECK(std::fabs(got[0] - (1 - p)) < 1e-6);
  CHECK(std::fabs(got[1] + (1 - p)) < 1e-6);
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: masked columns") {
  const Buffer got = backward_row(DType::fp32, {-infinity, 0, 0, -infinity}, {1}, {2});
  const double want[] = {0, 1, -1, 0};
  for (int j = 0; j < 4; ++j) CHECK(std::fabs(got[j] - want[j]) < 1e-6);
  const Buffer target = backward_row(DType::fp32, {-infinity, 0, 0}, {0}, {1});  // finite, of the formula
  CHECK(target[0] == 1);
  CHECK(std::fabs(target[1] + 0.5) < 1e-6);
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: ignored and bad indices add nothing") {
  Buffer logits = matrix(DType::fp32, 3, {1, 2, 3, not_a_number, infinity, not_a_number, 1, 2, 3});
  Buffer index(DType::int64, Shape{3, 2});
  const std::int64_t far = (std::int64_t{1} << 32) + 1, values[] = {2, -100, -100, far, -1, 0};
  for (int i = 0; i < 6; ++i) index.set_index(i / 2, i % 2, values[i]);
  Buffer grad_out = matrix(DType::fp32, 3, {1, not_a_number, not_a_number, infinity, not_a_number, 2});
  Errors counted;
  loss::SelectiveLogSoftmaxOptions options;
  options.errors = counted.on_device();
  const Buffer got = backward(logits, index, grad_out, options);
  check_row(got, 0, reference::selective_log_softmax_row({1, 2, 3}, {2}, {1}, {}));
  check_row(got, 2, reference::selective_log_softmax_row({1, 2, 3}, {0}, {2}, {}));
  for (int j = 0; j < 3; ++j) CHECK(got.at(1, j) == 0);
  const ErrorWord errors = counted.read();
  CHECK(errors.count == 2);
  CHECK(errors.first_row == 1);
  CHECK(errors.value == far);
}

TEST_CASE_ON_EACH_BACKEND(
    "selective_log_softmax_backward: a grad_out of 0 gives zeros without a sign, 1024 a factor to the bit") {
  const std::vector<double> logits{1, -2, 3, 0.5, 2};
  CHECK(backward_row(DType::fp32, logits, {1, 3}, {0, 0}).all_zero_bits());
  CHECK(backward_row(DType::fp32, logits, {1, 1}, {1, -1}).all_zero_bits());
  const Buffer one = backward_row(DType::fp32, logits, {1, 3}, {1, 0.3});
  const Buffer many = backward_row(DType::fp32, logits, {1, 3}, {1024, 1024 * static_cast<double>(0.3f)});
  for (int j = 0; j < 5; ++j) CHECK(many[j] == 1024 * one[j]);
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: no rows, no indices, leading dimensions, threads") {
  const Context context = test_context(2);
  Buffer none(DType::fp32, Shape{0, 5}), no_index(DType::int32, Shape{0}), no_grad(DType::fp32, Shape{0});
  loss::selective_log_softmax_backward(context, no_grad, no_index, none, Tensor(), none);
  Buffer three(DType::fp32, Shape{3, 5}), empty(DType::int32, Shape{3, 0}), lse(DType::fp32, Shape{3});
  Buffer empty_grad(DType::fp32, Shape{3, 0});
  loss::selective_log_softmax_backward(context, empty_grad, empty, three, lse, three.tensor());
  CHECK(three.all_zero_bits());

  Normal normal(3);
  Buffer logits = Buffer(DType::bf16, Shape{6, 1500}).fill([&](auto, auto) { return 3 * normal(); });
  const Selection selection(6, 3, 1500);
  const Buffer want = backward(logits, selection.index, selection.grad_out, {}, 1);
  for (const int threads : {2, 4}) {
    CHECK(backward(logits, selection.index, selection.grad_out, {}, threads).same_bits(want));
  }
  Buffer dense_index(DType::int64, Shape{2, 3, 3}), dense_grad(DType::fp32, Shape{2, 3, 3});
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t k = 0; k < 3; ++k) {
      dense_index.set_index(i, k, selection.index_at(i, k));
      dense_grad.set(i, k, selection.grad_out.at(i, k));
    }
  }
  Buffer row_lse(DType::fp32, Shape{2, 3}), out(DType::fp32, Shape{2, 3, 3});
  const Tensor deep = logits.tensor().reshape({2, 3, 1500});
  loss::selective_log_softmax(context, deep, dense_index, out, {}, row_lse);
  loss::selective_log_softmax_backward(context, dense_grad, dense_index, deep, row_lse, deep);
  CHECK(logits.same_bits(want));
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax_backward: mistakes of the caller") {
  const Context context = test_context(1);
  Buffer logits(DType::fp32, Shape{2, 4}), two = targets({0, 1}), grad_out(DType::fp32, Shape{2});
  Buffer lse(DType::fp32, Shape{2}), short_lse(DType::fp32, Shape{1}), three(DType::fp32, Shape{3});
  Buffer half(DType::fp16, Shape{2}), narrow(DType::fp32, Shape{2, 3});
  const auto call = [&](Buffer& grad, Buffer& index, const ConstTensor& with_lse, Buffer& out) {
    loss::selective_log_softmax_backward(context, grad, index, logits, with_lse, out);
  };
  CHECK_THROWS_WITH_AS(call(three, two, lse, logits), doctest::Contains("grad_out: expected index's shape"), Error);
  CHECK_THROWS_WITH_AS(call(half, two, lse, logits), doctest::Contains("grad_out: expected fp32"), Error);
  CHECK_THROWS_WITH_AS(call(grad_out, two, short_lse, logits), doctest::Contains("lse"), Error);
  CHECK_THROWS_WITH_AS(call(grad_out, two, Tensor(), logits), doctest::Contains("lse: not given"), Error);
  CHECK_THROWS_WITH_AS(call(grad_out, two, lse, narrow), doctest::Contains("grad_logits"), Error);
}
