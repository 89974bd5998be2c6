#include <doctest/doctest.h>
#include <tests/loss/buffer.h>
#include <tests/reference/cross_entropy.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

Buffer run(Buffer logits, Buffer index, DType out_dtype = DType::fp32,
           const loss::SelectiveLogSoftmaxOptions& options = {}, Buffer* lse = nullptr, int threads = 2) {
  Buffer out(out_dtype, index.tensor().shape, index.tensor().row_stride);
  const Tensor into = out.tensor();
  loss::selective_log_softmax(test_context(threads), logits, index, into, options, lse ? lse->tensor() : Tensor());
  CHECK(out.guards_intact());
  CHECK(out.written());
  if (lse) CHECK(lse->written());
  return out;
}

Buffer indices(DType dtype, std::int64_t rows, std::int64_t k, std::int64_t vocab, std::int64_t row_stride = 0) {
  Buffer index(dtype, k == 0 ? Shape{rows} : Shape{rows, k}, row_stride);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < std::max<std::int64_t>(k, 1); ++c) {
      // The last index of a row repeats its first.
      const std::int64_t value = (i * 31 + (c == k - 1 ? 0 : c) * 17 + 5) % vocab;
      k == 0 ? index.set_index(0, i, value) : index.set_index(i, c, value);
    }
  }
  return index;
}

std::int64_t index_at(const Buffer& index, std::int64_t row, std::int64_t k) {
  const ConstTensor t = index.host();
  const std::int64_t element = t.shape.rank() == 2 ? row * t.row_stride + k : row;
  return t.dtype == DType::int64 ? t.as<std::int64_t>()[element] : t.as<std::int32_t>()[element];
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: [N] and [N, K] against fp64, every dtype and option") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {1, 7, 130, 1027}) {
      Normal normal(11);
      Buffer logits(dtype, Shape{4, vocab + 3}, vocab + 8);
      logits.fill([&](auto, std::int64_t j) { return j < vocab ? 5 * normal() : not_a_number; });
      for (const std::int64_t k : {0, 1, 2, 3, 4, 5}) {
        for (const DType index_dtype : {DType::int32, DType::int64}) {
          for (const DType out_dtype : {DType::fp32, dtype}) {
            for (const double cap : {0.0, 4.0}) {
              Buffer index = indices(index_dtype, 4, k, vocab, k == 0 ? 0 : k + 2), lse(DType::fp32, Shape{4});
              loss::SelectiveLogSoftmaxOptions options;
              options.vocab = vocab;
              options.softcap = static_cast<float>(cap);
              options.logit_scale = cap > 0 ? 0.5f : 1.0f;
              const Buffer out = run(logits, index, out_dtype, options, &lse);
              for (std::int64_t i = 0; i < 4; ++i) {
                for (std::int64_t c = 0; c < std::max<std::int64_t>(k, 1); ++c) {
                  const std::int64_t y = index_at(index, i, c);
                  const auto want =
                      reference::cross_entropy_row(logits.row(i, vocab), y, {-100, 0, 0, cap, options.logit_scale});
                  const double got = k == 0 ? out[i] : out.at(i, c);
                  CHECK(got <= 0);
                  const double rounding = out_dtype == DType::fp32 ? 0 : ulp(out_dtype, want.target_logprob);
                  CHECK(std::fabs(got - want.target_logprob) <= 2e-6 * (1 + std::fabs(want.target_logprob)) + rounding);
                  CHECK(std::fabs(lse[i] - want.lse) <= 2e-6 * (1 + std::fabs(want.lse)));
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: leading dimensions are flattened") {
  Normal normal(2);
  Buffer logits = Buffer(DType::fp32, Shape{2, 3, 50}).fill([&](auto, auto) { return normal(); });
  Buffer flat(DType::fp32, Shape{6, 50});
  flat.fill([&](std::int64_t i, std::int64_t j) { return logits.at(i, j); });
  Buffer index = indices(DType::int64, 6, 0, 50), out(DType::fp32, Shape{2, 3});
  const ConstTensor two = ConstTensor(index.tensor()).reshape({2, 3});
  loss::selective_log_softmax(test_context(1), logits, two, out);
  const Buffer want = run(flat, index);
  for (int i = 0; i < 6; ++i) CHECK(out[i] == want[i]);

  Buffer several = indices(DType::int64, 6, 4, 50), out_several(DType::fp32, Shape{2, 3, 4});
  loss::selective_log_softmax(test_context(1), logits, ConstTensor(several.tensor()).reshape({2, 3, 4}), out_several);
  const Buffer want_several = run(flat, several);
  for (int i = 0; i < 24; ++i) CHECK(out_several[i] == want_several[i]);

  // One row without leading dimensions.
  Buffer row = Buffer(DType::fp32, Shape{50}).fill([&](auto, std::int64_t j) { return logits.at(0, j); });
  Buffer one = targets({7}), out_one(DType::fp32, Shape{1});
  loss::selective_log_softmax(test_context(1), row, one, out_one);
  CHECK(out_one[0] == run(matrix(DType::fp32, 1, row.values()), targets({7}))[0]);
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: fp32 out of bf16 logits, and of a large vocabulary in fp16") {
  CHECK(std::fabs(run(matrix(DType::bf16, 1, {0, 0, 0}), targets({1}))[0] + 1.0986123) < 1e-6);
  Buffer logits = Buffer(DType::fp16, Shape{1, 70000}).fill([](auto, auto) { return -3; });
  CHECK(std::fabs(run(logits, targets({69999}))[0] + 11.1562505) < 1e-5);
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: ignored and bad indices, rows that are not read") {
  Buffer logits = matrix(DType::fp32, 3, {1, 2, 3, not_a_number, infinity, not_a_number, 1, 2, 3});
  Buffer index(DType::int64, Shape{3, 2});
  const std::int64_t far = (std::int64_t{1} << 32) + 1, values[] = {2, -100, -100, far, -1, 0};
  for (int i = 0; i < 6; ++i) index.set_index(i / 2, i % 2, values[i]);
  Errors counted;
  loss::SelectiveLogSoftmaxOptions options;
  options.errors = counted.on_device();
  Buffer lse(DType::fp32, Shape{3});
  const Buffer out = run(logits, index, DType::fp32, options, &lse);
  CHECK(std::fabs(out[0] + .4076060) < 1e-6);
  CHECK(out[1] == 0);
  CHECK(out[2] == 0);
  CHECK(std::isnan(out[3]));
  CHECK(std::isnan(out[4]));
  CHECK(std::fabs(out[5] + 2.4076060) < 1e-6);
  CHECK(lse[1] == 0);
  const ErrorWord errors = counted.read();
  CHECK(errors.count == 2);
  CHECK(errors.first_row == 1);
  CHECK(errors.value == far);
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: masked columns") {
  const Buffer out = run(matrix(DType::fp32, 1, {-infinity, 0, 0, -infinity}), targets({1}));
  CHECK(std::fabs(out[0] + std::log(2)) < 1e-6);
  CHECK(run(matrix(DType::fp32, 1, {-infinity, 0, 0}), targets({0}))[0] == -infinity);
  CHECK(std::isnan(run(matrix(DType::fp32, 1, {-infinity, -infinity}), targets({0}))[0]));
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: same bits with any number of threads, alignment and stride") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const auto with = [&](std::int64_t stride, std::int64_t offset, int threads) {
      Normal normal(3);
      Buffer logits(dtype, Shape{17, 1500}, stride, offset);
      logits.fill([&](auto, auto) { return 3 * normal(); });
      return run(logits, indices(DType::int64, 17, 2, 1500), DType::fp32, {}, nullptr, threads);
    };
    const Buffer want = with(1500, 0, 1);
    CHECK(with(1500, 0, 2).same_bits(want));
    CHECK(with(1501, 1, 4).same_bits(want));
    CHECK(with(3000, 3, 3).same_bits(want));
  }
}

TEST_CASE_ON_EACH_BACKEND("selective_log_softmax: mistakes of the caller") {
  const Context context = test_context(1);
  Buffer logits(DType::fp32, Shape{2, 4}), three = targets({0, 1, 2}), two = targets({0, 1});
  Buffer out(DType::fp32, Shape{2}), half(DType::fp16, Shape{2}), out_three(DType::fp32, Shape{3});
  CHECK_THROWS_WITH_AS(loss::selective_log_softmax(context, logits, three, out_three), doctest::Contains("index"),
                       Error);
  CHECK_THROWS_WITH_AS(loss::selective_log_softmax(context, logits, two, out_three), doctest::Contains("out"), Error);
  CHECK_THROWS_WITH_AS(loss::selective_log_softmax(context, logits, two, half), doctest::Contains("fp32"), Error);
  loss::SelectiveLogSoftmaxOptions options;
  options.vocab = 5;
  CHECK_THROWS_WITH_AS(loss::selective_log_softmax(context, logits, two, out, options), doctest::Contains("vocab 5"),
                       Error);
}
