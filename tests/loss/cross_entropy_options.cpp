// Every option of the row kernel against the fp64 reference, over odd shapes; and that reference against its own
// finite differences.
#include <doctest/doctest.h>
#include <tests/loss/buffer.h>
#include <tests/reference/cross_entropy.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

reference::CrossEntropyOptions reference_options(const loss::CrossEntropyOptions& options) {
  return {options.ignore_index, options.label_smoothing, options.z_loss_multiplier, options.softcap,
          options.logit_scale};
}

// Options by the bits of `choice`.
loss::CrossEntropyOptions options_of(int choice) {
  loss::CrossEntropyOptions options;
  if (choice & 1) options.label_smoothing = 0.1f;
  if (choice & 2) options.z_loss_multiplier = 1e-2f;
  if (choice & 4) options.softcap = 15;
  if (choice & 8) options.logit_scale = 1.7f;
  return options;
}

// What fp32 arithmetic may lose where the terms of a gradient cancel: relative to their absolute sum.
double gradient_scale(const reference::CrossEntropyRow& row, const loss::CrossEntropyOptions& options,
                      double gradient) {
  const double k = 1 + 2 * options.z_loss_multiplier * row.lse;
  return std::fabs(gradient) + std::fabs(k) * options.label_smoothing * options.logit_scale;
}

}  // namespace

TEST_CASE("reference cross_entropy: its gradient is the derivative of its loss") {
  Normal normal(1);
  for (int choice = 0; choice < 16; ++choice) {
    const reference::CrossEntropyOptions options = reference_options(options_of(choice));
    std::vector<double> logits(9);
    for (double& z : logits) z = 4 * normal();
    logits[4] = -infinity;
    const reference::CrossEntropyRow row = reference::cross_entropy_row(logits, 2, options);
    for (int j = 0; j < 9; ++j) {
      if (j == 4) {
        CHECK(row.grad[j] == 0);
        continue;
      }
      const double h = 1e-5, z = logits[j];
      logits[j] = z + h;
      const double above = reference::cross_entropy_row(logits, 2, options).loss;
      logits[j] = z - h;
      const double below = reference::cross_entropy_row(logits, 2, options).loss;
      logits[j] = z;
      CAPTURE(choice);
      CAPTURE(j);
      CHECK(std::fabs((above - below) / (2 * h) - row.grad[j]) < 1e-8);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND(
    "cross_entropy: every option against fp64; 16-bit gradients within one unit in the last place") {
  const Context context = test_context(2);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {1, 2, 7, 16, 33, 1024, 1025, 2500}) {
      for (const double spread : {1.0, 8.0}) {
        for (int choice = 0; choice < 16; ++choice) {
          loss::CrossEntropyOptions options = options_of(choice);
          options.reduction = loss::Reduction::sum;
          Normal normal(static_cast<std::uint32_t>(vocab));
          const std::int64_t rows = 3;
          Buffer logits(dtype, Shape{rows, vocab}, vocab + choice % 3);
          logits.fill([&](auto, std::int64_t j) { return j % 11 == 10 ? -infinity : spread * normal(); });
          std::vector<std::vector<double>> raw;
          for (std::int64_t i = 0; i < rows; ++i) raw.push_back(logits.row(i, vocab));
          const std::vector<std::int64_t> y{0, vocab / 2 - (vocab / 2 % 11 == 10),
                                            (vocab - 1) - ((vocab - 1) % 11 == 10)};
          Buffer target = targets(y, choice % 2 ? DType::int32 : DType::int64);
          Buffer row_loss(DType::fp32, Shape{rows}), lse = row_loss, logprob = row_loss, entropy = row_loss;
          Buffer argmax(DType::int32, Shape{rows});
          Sums sums(context);
          Scratch scratch(loss::cross_entropy_workspace_bytes(context, rows));
          loss::cross_entropy_with_grad(context, logits, target, options, scratch.workspace, sums.sums,
                                        {row_loss, lse, logprob, entropy, argmax});
          INFO("dtype " << std::string(name_of(dtype)));
          CAPTURE(vocab);
          CAPTURE(spread);
          CAPTURE(choice);
          // A scaled logit of 50 carries a rounding of 2e-6, which the exponential makes a relative error.
          const double relative = options.logit_scale == 1 ? 1e-5 : 2e-5;
          std::int64_t wrong = 0;
          double sum = 0;
          for (std::int64_t i = 0; i < rows; ++i) {
            const auto want = reference::cross_entropy_row(raw[i], y[i], reference_options(options));
            sum += want.ce;
            CHECK(std::fabs(row_loss[i] - want.loss) <= 1e-5 * want.loss);
            CHECK(std::fabs(lse[i] - want.lse) <= 1e-5 * std::fabs(want.lse) + 1e-6);
            CHECK(std::fabs(logprob[i] - want.target_logprob) <= 1e-5 * std::fabs(want.target_logprob));
            CHECK(std::fabs(entropy[i] - want.entropy) <= 1e-5 * want.entropy + 2e-7);
            CHECK(argmax[i] == want.argmax);
            for (std::int64_t j = 0; j < vocab; ++j) {
              const double got = logits.at(i, j), exact = want.grad[j];
              const double fp32_error = relative * gradient_scale(want, options, exact);
              const double rounding = (dtype == DType::fp32 ? 2 : 1) * ulp(dtype, exact);
              if (!(std::fabs(got - exact) <= std::max(fp32_error, rounding))) ++wrong;
            }
          }
          CHECK(wrong == 0);
          CHECK(std::fabs(sums.data().ce_sum - sum) <= 1e-5 * sum);
          CHECK(logits.guards_intact());
        }
      }
    }
  }
}
