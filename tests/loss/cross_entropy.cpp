// What a call promises about its rows together: which of them count, reductions, outputs, sums.
#include <tests/loss/row_call.h>

namespace loss = greyhound::loss;
using namespace greyhound;
using namespace greyhound::test;

TEST_CASE_ON_EACH_BACKEND("cross_entropy: N = 0") {
  const RowCallResult r = run_cross_entropy(Buffer(DType::fp32, Shape{0, 5}), Buffer(DType::int64, Shape{0}));
  CHECK(r.report.n_valid == 0);
  CHECK(r.report.ce_sum == 0);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: all rows ignored, whatever their logits") {
  for (const auto reduction : {loss::Reduction::mean, loss::Reduction::sum, loss::Reduction::none}) {
    Buffer logits(DType::fp32, Shape{4, 8});
    logits.fill([](std::int64_t i, std::int64_t j) { return (i + j) % 2 ? not_a_number : infinity; });
    loss::CrossEntropyOptions options;
    options.reduction = reduction;
    options.z_loss_multiplier = 0.1f;
    const RowCallResult r = run_cross_entropy(std::move(logits), targets({-100, -100, -100, -100}), options);
    CHECK(r.grad.all_zero_bits());
    CHECK(r.report.ce_sum == 0);
    CHECK(r.report.z_sum == 0);
    CHECK(r.report.n_valid == 0);
    CHECK(r.report.nonfinite_rows == 0);
    CHECK(r.report.mean_ce() == 0);
    for (const Buffer* out : {&r.loss, &r.lse, &r.target_logprob, &r.entropy}) CHECK(out->all_zero_bits());
    for (int i = 0; i < 4; ++i) CHECK(r.argmax[i] == -1);
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: every output is written for every row") {
  // Rows: valid, ignored, out of range, valid. run_cross_entropy checks that none stays as it started.
  const RowCallResult r = run_cross_entropy(matrix(DType::fp32, 4, {0, 1, 9, 9, 9, 9, 2, 0}), targets({0, -100, 7, 1}));
  for (const Buffer* out : {&r.loss, &r.lse, &r.target_logprob, &r.entropy}) {
    CHECK(std::isfinite((*out)[0]));
    CHECK((*out)[1] == 0);
    CHECK(std::isnan((*out)[2]));
    CHECK(std::isfinite((*out)[3]));
  }
  CHECK(r.argmax[0] == 1);
  CHECK(r.argmax[1] == -1);
  CHECK(r.argmax[2] == -1);
  CHECK(r.argmax[3] == 0);
  CHECK(r.report.n_valid == 2);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: ignore_index inside the vocabulary") {
  loss::CrossEntropyOptions options;
  options.ignore_index = 2;
  const RowCallResult r = run_cross_entropy(matrix(DType::fp32, 2, {1, 2, 3, 4, 1, 2, 3, 4}), targets({2, 1}), options);
  CHECK(r.report.n_valid == 1);
  CHECK(matrix(DType::fp32, 1, r.grad.row(0, 4)).all_zero_bits());
  check_row(r.grad, 1, {.0320586, .0871443 - 1, .2368828, .6439143}, 2e-6);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: class weights are not read at ignore_index") {
  // The weights stand at the very start of their memory: a memory checker sees a read at -100.
  Buffer weights = vector(DType::fp32, {2, 1, 1, .5});
  loss::CrossEntropyOptions options;
  options.class_weights = weights;
  const RowCallResult r =
      run_cross_entropy(matrix(DType::fp32, 3, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}), targets({3, -100, 0}), options);
  check_near(r.report.weight_sum, 2.5);
  check_near(r.report.ce_sum, .5 * .4401897 + 2 * 3.4401897);
  check_row(r.grad, 0, {.0320586 / 5, .0871443 / 5, .2368828 / 5, -.3560857 / 5}, 2e-6);
  check_row(r.grad, 2, {-.9679414 / 1.25, .0871443 / 1.25, .2368828 / 1.25, .6439143 / 1.25}, 2e-6);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: targets out of range are reported and touch nothing else") {
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 31, std::int64_t{1} << 32,
                                 (std::int64_t{1} << 32) + 1, lowest}) {
    CAPTURE(bad);
    Buffer weights = vector(DType::fp32, {1, 1, 1, 1});
    loss::CrossEntropyOptions options;
    options.class_weights = weights;
    const std::vector<double> z{1, 2, 3, 4};
    Buffer logits(DType::fp32, Shape{4, 4});
    logits.fill([&](std::int64_t, std::int64_t j) { return z[j]; });
    const RowCallResult r = run_cross_entropy(std::move(logits), targets({3, bad, 3, bad}), options);
    CHECK(r.report.errors.count == 2);
    CHECK(r.report.errors.first_row == 1);
    CHECK(r.report.errors.value == bad);
    CHECK(r.report.n_valid == 2);
    CHECK(r.report.nonfinite_rows == 0);
    CHECK(matrix(DType::fp32, 1, r.grad.row(1, 4)).all_zero_bits());
    CHECK(std::isnan(r.loss[1]));
    check_row(r.grad, 0, {.0160293, .0435721, .1184414, -.1780429}, 2e-6);
    check_near(r.report.ce_sum, 2 * .4401897);
    CHECK_THROWS_WITH_AS(r.report.check(), doctest::Contains("in row 1"), Error);
    CHECK_THROWS_WITH_AS(r.report.check(), doctest::Contains(std::to_string(bad).c_str()), Error);
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: int32 and int64 targets mean the same") {
  const std::vector<double> z{1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 0, 0};
  const RowCallResult wide = run_cross_entropy(matrix(DType::fp32, 3, z), targets({3, -100, 9}, DType::int64));
  const RowCallResult narrow = run_cross_entropy(matrix(DType::fp32, 3, z), targets({3, -100, 9}, DType::int32));
  CHECK(narrow.grad.same_bits(wide.grad));
  CHECK(narrow.report.ce_sum == wide.report.ce_sum);
  CHECK(narrow.report.errors.value == 9);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: sums are not kept in the logits' dtype") {
  Buffer logits(DType::bf16, Shape{4096, 3});
  logits.fill([](auto, auto) { return 0; });
  const RowCallResult r = run_cross_entropy(std::move(logits), targets(std::vector<std::int64_t>(4096, 1)));
  CHECK(std::fabs(r.report.ce_sum - 4499.9159) < 1e-3);
  CHECK(r.report.weight_sum == 4096);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: upstream scales gradients, not the reported loss") {
  Normal normal(3);
  const Buffer logits = Buffer(DType::fp32, Shape{6, 37}).fill([&](auto, auto) { return normal(); });
  const Buffer y = targets({1, 2, 3, -100, 5, 6});
  const RowCallResult plain = run_cross_entropy(logits, y);
  for (const double factor : {1024.0, 0.0, 1.0}) {
    Buffer upstream = vector(DType::fp32, {factor});
    loss::CrossEntropyOptions options;
    options.upstream = upstream;
    const RowCallResult r = run_cross_entropy(logits, y, options);
    CHECK(r.report.ce_sum == plain.report.ce_sum);
    CHECK(r.loss.same_bits(plain.loss));
    bool exact = true;
    for (std::int64_t i = 0; i < r.grad.elements(); ++i) exact &= r.grad[i] == factor * plain.grad[i];
    CHECK(exact);
    if (factor == 0) CHECK(r.grad.all_zero_bits());
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: reductions and denominators") {
  const std::vector<double> z{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
  const std::vector<double> dz{.0320586, .0871443, .2368828, -.3560857};
  const auto scaled = [&](double by) {
    std::vector<double> want;
    for (double d : dz) want.push_back(by * d);
    return want;
  };
  loss::CrossEntropyOptions options;
  const auto check_scale = [&](double by) {
    const RowCallResult r = run_cross_entropy(matrix(DType::fp32, 3, z), targets({3, -100, 3}), options);
    check_row(r.grad, 0, scaled(by), 2e-6);
    check_row(r.grad, 2, scaled(by), 2e-6);
    CHECK(r.report.n_valid == 2);
  };
  check_scale(1.0 / 2);
  options.reduction = loss::Reduction::sum;
  check_scale(1);
  options.reduction = loss::Reduction::none;
  check_scale(1);
  options.reduction = loss::Reduction::mean;
  Buffer denominator = vector(DType::fp32, {8});
  options.denominator = denominator;
  check_scale(1.0 / 8);
  denominator.set(0, 0, 0);
  options.denominator = denominator;
  check_scale(0);

  Buffer row_weights = vector(DType::fp32, {1, 5, 3});
  options = {};
  options.row_weights = row_weights;
  const RowCallResult weighted = run_cross_entropy(matrix(DType::fp32, 3, z), targets({3, -100, 3}), options);
  check_row(weighted.grad, 0, scaled(1.0 / 4), 2e-6);
  check_row(weighted.grad, 2, scaled(3.0 / 4), 2e-6);
  CHECK(weighted.report.weight_sum == 4);
  check_near(weighted.report.mean_ce(), .4401897);

  Buffer upstream = vector(DType::fp32, {1, 2, 10});
  options = {};
  options.reduction = loss::Reduction::none;
  options.upstream = upstream;
  const RowCallResult each = run_cross_entropy(matrix(DType::fp32, 3, z), targets({3, -100, 3}), options);
  check_row(each.grad, 0, scaled(1), 2e-6);
  check_row(each.grad, 2, scaled(10), 2e-6);
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: to another buffer, or no gradient at all, the logits stay") {
  const Context context = test_context(2);
  Normal normal(5);
  Buffer logits = Buffer(DType::bf16, Shape{5, 1500}, 1600).fill([&](auto, auto) { return 4 * normal(); });
  const Buffer before = logits;
  const Buffer y = targets({0, 1499, -100, 7, 1024});
  const RowCallResult in_place = run_cross_entropy(logits, y);
  Buffer grad(DType::bf16, Shape{5, 1500}, 1507), row_loss(DType::fp32, Shape{5}), target = y;
  Scratch scratch(loss::cross_entropy_workspace_bytes(context, 5));
  for (const bool wants_grad : {true, false}) {
    Sums sums(context);
    loss::cross_entropy(context, logits, target, wants_grad ? grad.tensor() : Tensor(), {}, scratch.workspace,
                        sums.sums, {row_loss});
    CHECK(logits.same_bits(before));
    CHECK(row_loss.same_bits(in_place.loss));
    CHECK(sums.sums.read(context).ce_sum == in_place.report.ce_sum);
  }
  CHECK(grad.same_bits(in_place.grad));
  CHECK(grad.guards_intact());
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: mistakes of the caller") {
  const Context context = test_context(1);
  Buffer logits(DType::fp32, Shape{2, 4}), y = targets({0, 1}), three = targets({0, 1, 2});
  Buffer two_values = vector(DType::fp32, {1, 1}), one_value = vector(DType::fp32, {1});
  Sums sums(context);
  Scratch scratch(loss::cross_entropy_workspace_bytes(context, 2));
  const auto call = [&](const loss::CrossEntropyOptions& options, Buffer& target, std::int64_t vocab = 0) {
    loss::cross_entropy_with_grad(context, logits, target, options, scratch.workspace, sums.sums, {}, vocab);
  };
  CHECK_THROWS_WITH_AS(call({}, three), doctest::Contains("targets: expected 2"), Error);
  CHECK_THROWS_WITH_AS(call({}, y, 5), doctest::Contains("fewer than the vocabulary of 5"), Error);
  CHECK_THROWS_WITH_AS(call({}, two_values), doctest::Contains("targets: expected int32 or int64"), Error);
  loss::CrossEntropyOptions options;
  options.reduction = loss::Reduction::sum;
  options.denominator = one_value;
  CHECK_THROWS_WITH_AS(call(options, y), doctest::Contains("denominator"), Error);
  options = {};
  options.upstream = two_values;
  CHECK_THROWS_WITH_AS(call(options, y), doctest::Contains("upstream"), Error);
  options = {};
  options.class_weights = two_values;
  CHECK_THROWS_WITH_AS(call(options, y), doctest::Contains("class_weights: expected 4"), Error);
  options = {};
  options.label_smoothing = 1;
  CHECK_THROWS_WITH_AS(call(options, y), doctest::Contains("label_smoothing"), Error);
  options = {};
  options.logit_scale = 0;
  CHECK_THROWS_WITH_AS(call(options, y), doctest::Contains("logit_scale"), Error);
  Scratch small(16);
  CHECK_THROWS_WITH_AS(loss::cross_entropy_with_grad(context, logits, y, small.workspace, sums.sums),
                       doctest::Contains("workspace"), Error);
}
