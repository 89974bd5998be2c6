// Known answers of single rows: numerics, masks, padding.
#include <tests/loss/row_call.h>

namespace loss = greyhound::loss;
using namespace greyhound;
using namespace greyhound::test;

static const std::vector<double> base_logits{1, 2, 3, 4};

TEST_CASE_ON_EACH_BACKEND("cross_entropy: the base row [1, 2, 3, 4]") {
  const RowCallResult r = run_cross_entropy_row(DType::fp32, base_logits, 3);
  check_near(r.lse[0], 4.4401897);
  check_near(r.loss[0], 0.4401897);
  check_near(r.report.ce_sum, 0.4401897);
  check_near(r.report.z_sum, 4.4401897 * 4.4401897);
  check_near(r.target_logprob[0], -0.4401897);
  CHECK(r.argmax[0] == 3);
  check_row(r.grad, 0, {.0320586, .0871443, .2368828, -.3560857}, 2e-6);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: any vocabulary, uniform logits") {
  for (const std::int64_t v : {1,     2,     5,     7,     8,     9,      31,     33,     127,    1023,   1025,
                               32000, 50257, 65535, 65536, 65537, 100352, 128256, 131073, 152064, 200064, 262144}) {
    CAPTURE(v);
    const RowCallResult r =
        run_cross_entropy(Buffer(DType::fp32, Shape{1, v}).fill([](auto, auto) { return 0.25; }), targets({v / 2}));
    CHECK(std::fabs(r.loss[0] - std::log(v)) <= 1e-6 * std::log(v));
    CHECK(r.argmax[0] == 0);
    std::int64_t wrong = 0;
    for (std::int64_t j = 0; j < v; ++j) {
      const double want = j == v / 2 ? 1.0 / v - 1 : 1.0 / v;
      if (!(std::fabs(r.grad.at(0, j) - want) <= 1e-6 * std::fabs(want))) ++wrong;
    }
    CHECK(wrong == 0);
    CHECK((v > 1 || (r.loss[0] == 0 && r.grad.all_zero_bits())));
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: V = 5, all logits -20 (no phantom columns)") {
  const RowCallResult r = run_cross_entropy_row(DType::fp32, std::vector<double>(5, -20), 1);
  check_near(r.lse[0], -18.3905621, 1e-6);
  check_near(r.loss[0], 1.6094379, 1e-6);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: padding columns are no classes, and their gradient is written 0") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    Buffer logits(dtype, Shape{2, 16});
    logits.fill([](auto, std::int64_t j) { return j < 11 ? 0 : not_a_number; });
    loss::CrossEntropyOptions options;
    options.reduction = loss::Reduction::sum;
    const RowCallResult r = run_cross_entropy(logits, targets({0, -100}), options, 11);
    std::vector<double> want(16, 1.0 / 11);
    want[0] = -10.0 / 11;
    for (int j = 11; j < 16; ++j) want[j] = 0;
    check_row(r.grad, 0, want, dtype == DType::fp32 ? 1e-6 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11);
    CHECK(matrix(dtype, 1, r.grad.row(1, 16)).all_zero_bits());
    check_near(r.loss[0], std::log(11.0), 1e-6);
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: a misaligned base and odd strides change no bit") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {64, 67, 2100}) {
      Normal normal(7);
      std::vector<double> values(3 * vocab);
      for (double& value : values) value = 3 * normal();
      const auto with = [&](std::int64_t stride, std::int64_t offset) {
        Buffer logits(dtype, Shape{3, vocab}, stride, offset);
        logits.fill([&](std::int64_t i, std::int64_t j) { return values[i * vocab + j]; });
        return run_cross_entropy(std::move(logits), targets({5, 63, 0}));
      };
      const RowCallResult aligned = with(vocab, 0);
      for (const std::int64_t stride : {vocab, vocab + 1, 2 * vocab}) {
        for (const std::int64_t offset : {1, 3}) {
          const RowCallResult r = with(stride, offset);
          CHECK(r.grad.same_bits(aligned.grad));
          CHECK(r.loss.same_bits(aligned.loss));
          CHECK(r.entropy.same_bits(aligned.entropy));
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: label smoothing") {
  loss::CrossEntropyOptions options;
  options.label_smoothing = .1f;
  const RowCallResult r = run_cross_entropy_row(DType::fp32, {1, 0, 0, 0}, 0, options);
  check_near(r.lse[0], 1.7436684);
  check_near(r.loss[0], .8186684);
  const RowCallResult masked = run_cross_entropy_row(DType::fp32, {1, -infinity, 0, 0, -infinity, 0}, 0, options);
  check_near(masked.loss[0], .8186684);
  CHECK(masked.grad[1] == 0);
  CHECK(masked.grad[4] == 0);
  CHECK(masked.grad[0] == r.grad[0]);
  CHECK(masked.grad[5] == r.grad[3]);
  const RowCallResult ignored = run_cross_entropy_row(DType::fp32, {1, 0, 0, 0}, -100, options);
  CHECK(ignored.report.ce_sum == 0);
  CHECK(ignored.grad.all_zero_bits());
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: masked columns") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    std::vector<double> z(2049, -infinity);
    z[2048] = 10;
    const RowCallResult alone = run_cross_entropy_row(dtype, z, 2048);
    CHECK(alone.loss[0] == 0);
    CHECK(alone.grad.all_zero_bits());
    CHECK(alone.entropy[0] == 0);

    const RowCallResult two = run_cross_entropy_row(dtype, {-infinity, 0, 0, -infinity}, 1);
    check_near(two.loss[0], std::log(2.0));
    check_near(two.entropy[0], std::log(2.0));
    check_row(two.grad, 0, {0, -.5, .5, 0});

    std::fill(z.begin(), z.begin() + 1024, -infinity);
    std::fill(z.begin() + 1024, z.end(), 0);
    z.pop_back();
    const RowCallResult leading = run_cross_entropy_row(dtype, z, 2000);
    check_near(leading.loss[0], 6.9314718, 1e-6);
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: a masked target, and rows of nothing but masked columns") {
  const RowCallResult target = run_cross_entropy_row(DType::fp32, {1, -infinity, 3}, 1);
  CHECK(target.loss[0] == infinity);
  CHECK(target.target_logprob[0] == -infinity);
  CHECK(target.report.nonfinite_rows == 1);
  check_row(target.grad, 0, {.1192029, -1, .8807971}, 2e-6);

  loss::CrossEntropyOptions capped;
  capped.softcap = 30;
  const RowCallResult with_cap = run_cross_entropy_row(DType::fp32, {1, -infinity, 3}, 1, capped);
  CHECK(with_cap.loss[0] == infinity);
  for (int j = 0; j < 3; ++j) CHECK(std::isfinite(with_cap.grad[j]));

  const RowCallResult all = run_cross_entropy(matrix(DType::fp32, 2, {-infinity, -infinity, 1, 2}), targets({0, 1}));
  CHECK(std::isnan(all.loss[0]));
  CHECK(std::isnan(all.lse[0]));
  CHECK(all.argmax[0] == -1);
  CHECK(std::isfinite(all.loss[1]));
  CHECK(all.report.nonfinite_rows == 1);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: NaN and +inf spoil their own row, wherever they stand") {
  for (const double bad : {not_a_number, infinity}) {
    for (const float softcap : {0.0f, 30.0f}) {
      for (const std::int64_t at : {0, 1, 1023, 1024, 2999}) {
        for (const std::int64_t target : {0L, 1L, 1500L}) {
          CAPTURE(bad);
          CAPTURE(at);
          Buffer logits(DType::bf16, Shape{3, 3000});
          // Row 1 is masked up to the bad logit, so that whole blocks hold nothing else.
          logits.fill([&](std::int64_t i, std::int64_t j) {
            return i == 1 && j == at ? bad : i == 1 && j < 2000 ? -infinity : 1;
          });
          loss::CrossEntropyOptions options;
          options.softcap = softcap;
          options.reduction = loss::Reduction::sum;
          const RowCallResult r = run_cross_entropy(logits, targets({target, target, target}), options);
          CHECK(std::isnan(r.loss[1]));
          CHECK(std::isnan(r.lse[1]));
          CHECK(std::isnan(r.grad.at(1, target)));
          CHECK(std::isnan(r.grad.at(1, 2500)));
          CHECK(r.report.nonfinite_rows == 1);
          CHECK(r.report.n_valid == 3);
          check_near(r.loss[0], std::log(3000.0));
          check_near(r.loss[2], std::log(3000.0));
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: a large common offset in fp32") {
  const RowCallResult r = run_cross_entropy_row(DType::fp32, {1048576, 1048578}, 0);
  check_near(r.loss[0], 2.1269280);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: the target's gradient keeps its precision") {
  check_near(run_cross_entropy_row(DType::bf16, {6.90625, 0}, 0).grad[0], -.00100050, 0x1p-7);
  check_near(run_cross_entropy_row(DType::fp32, {12, 0}, 0).grad[0], -6.1441746e-6);
  check_near(run_cross_entropy_row(DType::fp32, {15, 0}, 0).grad[0], -3.0590223e-7);
  check_near(run_cross_entropy_row(DType::fp32, {20, 0}, 0).grad[0], -2.0611536e-9);
  check_near(run_cross_entropy_row(DType::fp32, {20, 0}, 0).loss[0], 2.0611536e-9);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: softcap") {
  loss::CrossEntropyOptions options;
  options.softcap = 30;
  const RowCallResult right = run_cross_entropy_row(DType::fp32, {2000, -2000}, 0, options);
  CHECK(right.loss[0] >= 0);
  CHECK(right.loss[0] < 1e-20);
  const RowCallResult wrong = run_cross_entropy_row(DType::fp32, {2000, -2000}, 1, options);
  check_near(wrong.loss[0], 60);
  for (const RowCallResult* r : {&right, &wrong}) {
    CHECK(r->grad[0] == 0);
    CHECK(r->grad[1] == 0);
  }
  const RowCallResult small = run_cross_entropy_row(DType::fp32, {10, 0}, 0, options);
  check_near(small.loss[0], 6.472167e-5);
  check_row(small.grad, 0, {-5.802948e-5, 6.471958e-5});
  const RowCallResult masked = run_cross_entropy_row(DType::fp32, {10, -infinity, 0}, 0, options);
  check_near(masked.loss[0], 6.472167e-5);
  CHECK(masked.grad[1] == 0);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: z-loss") {
  loss::CrossEntropyOptions options;
  options.z_loss_multiplier = 1e-4f;
  const RowCallResult r = run_cross_entropy_row(DType::fp32, base_logits, 3, options);
  check_near(r.report.mean_loss(1e-4), .4421612);
  check_near(r.loss[0], .4421612);
  check_row(r.grad, 0, {.0320871, .0872217, .2370932, -.3555139}, 3e-6);

  const RowCallResult three =
      run_cross_entropy(matrix(DType::fp32, 3, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}), targets({3, -100, 3}), options);
  check_near(three.report.mean_loss(1e-4), .4421612);
  check_row(three.grad, 0, {.0320871 / 2, .0872217 / 2, .2370932 / 2, -.3555139 / 2}, 3e-6);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: fp16 logits of a large vocabulary") {
  Buffer logits(DType::fp16, Shape{1, 70000});
  logits.fill([](auto, auto) { return 2; });
  const RowCallResult r = run_cross_entropy(std::move(logits), targets({69999}));
  check_near(r.loss[0], 11.1562505, 1e-7);
}
