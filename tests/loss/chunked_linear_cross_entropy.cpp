#include <tests/loss/linear_problem.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

// Replaces the data of a problem by given values.
LinearData with(const LinearProblem& p, const std::vector<double>& inputs, const std::vector<double>& weight,
                const std::vector<std::int64_t>& y, const std::vector<double>& bias = {}) {
  LinearData data(p);
  data.inputs = matrix(p.dtype, p.rows, inputs);
  data.weight = matrix(p.dtype, p.stored(), weight);
  data.targets = targets(y);
  if (!bias.empty()) data.bias = vector(DType::fp32, bias);
  return data;
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: odd shapes against fp64, chunks of any length") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const LinearProblem& p :
         {LinearProblem{5, 3, 7, dtype}, LinearProblem{13, 100, 1031, dtype}, LinearProblem{1, 1, 1, dtype},
          LinearProblem{33, 17, 129, dtype, 136}, LinearProblem{70, 64, 300, dtype, 320, true}}) {
      const LinearData data(p);
      Wanted wanted;
      wanted.bias = true;
      const auto want = reference_result(p, data, {});
      for (const std::int64_t chunk_rows : {1, 2, 3, 4, 5, 100}) {
        INFO("dtype " << std::string(name_of(dtype)));
        CAPTURE(p.vocab);
        CAPTURE(chunk_rows);
        check_linear(p, run_linear(p, data, {}, chunks_of(chunk_rows), wanted), want, wanted);
      }
      check_linear(p, run_linear(p, data, {}, {}, wanted), want, wanted);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: a large odd vocabulary against fp64") {
  const LinearProblem p{13, 100, 50257, DType::fp32, 50304};
  const LinearData data(p);
  Buffer denominator = vector(DType::fp32, {11});  // the valid rows, given so that the reference is computed once
  loss::CrossEntropyOptions options;
  options.denominator = denominator;
  check_linear(p, run_linear(p, data, options, chunks_of(5)), reference_result(p, data, options));
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: loss and sums do not depend on the chunks") {
  const LinearProblem p{23, 16, 50};
  const LinearData data(p);
  const LinearResult whole = run_linear(p, data, {}, chunks_of(23));
  for (const std::int64_t chunk_rows : {1, 4, 7, 22}) {
    const LinearResult r = run_linear(p, data, {}, chunks_of(chunk_rows));
    CHECK(std::fabs(r.sums.ce_sum - whole.sums.ce_sum) <= 1e-6 * whole.sums.ce_sum);
    check_sums(r.row_loss, whole.row_loss.values(), whole.row_loss.values(), 2e-6);
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: the mean over chunks is not a mean of means") {
  // Weights chosen so that rows of input 1 have loss ln 2 and the row of input 0 has ln 4 (V = 4).
  const LinearProblem p{5, 1, 4};
  const LinearData data = with(p, {1, 1, 1, 1, 0}, {0, 0, -200, -200}, {0, 1, 0, 1, 3});
  const LinearResult r = run_linear(p, data, {}, chunks_of(2));
  CHECK(std::fabs(loss::LossSums::report(r.sums).mean_ce() - .8317766) < 1e-6);
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: N = 0") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType grad_dtype : {DType::fp32, dtype}) {
      const LinearProblem p{0, 8, 10, dtype, 12};
      loss::PlanOptions options;
      options.grad_weight_dtype = grad_dtype;
      Wanted wanted{true, true, true};
      const LinearResult zero = run_linear(p, LinearData(p), {}, options, wanted);
      CHECK(zero.grad_weight.all_zero_bits());
      CHECK(zero.grad_bias.all_zero_bits());
      CHECK(zero.sums.n_valid == 0);
      CHECK(zero.sums.ce_sum == 0);
      wanted.accumulate = true;
      wanted.before = 7;
      const LinearResult kept = run_linear(p, LinearData(p), {}, options, wanted);
      for (double value : kept.grad_weight.values()) CHECK(value == 7);
      for (double value : kept.grad_bias.values()) CHECK(value == 7);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: all rows ignored, with NaN inputs") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    LinearProblem p{6, 8, 10, dtype, 12, true};
    LinearData data(p);
    data.inputs.fill([](auto, auto) { return not_a_number; });
    data.targets = targets(std::vector<std::int64_t>(6, -100));
    Wanted wanted{true, true, true};
    const LinearResult zero = run_linear(p, data, {}, chunks_of(4), wanted);
    for (double value : zero.grad_weight.values()) CHECK(value == 0);
    for (double value : zero.grad_input.values()) CHECK(value == 0);
    for (double value : zero.grad_bias.values()) CHECK(value == 0);
    CHECK(zero.sums.ce_sum == 0);
    CHECK(zero.sums.n_valid == 0);
    wanted.accumulate = true;
    wanted.before = 7;
    const LinearResult kept = run_linear(p, data, {}, chunks_of(4), wanted);
    for (double value : kept.grad_weight.values()) CHECK(value == 7);
    for (double value : kept.grad_bias.values()) CHECK(value == 7);
  }
}

TEST_CASE_ON_EACH_BACKEND(
    "chunked_linear_cross_entropy: NaN inputs of rows that do not count stay out of grad_weight") {
  const LinearProblem p{9, 8, 20, DType::bf16};
  LinearData data(p);
  data.targets.set_index(0, 2, 99);  // out of range
  const LinearResult clean = run_linear(p, data, {}, chunks_of(4));
  for (const std::int64_t row : {2, 4}) {
    for (std::int64_t d = 0; d < 8; ++d) data.inputs.set(row, d, d % 2 ? not_a_number : infinity);
  }
  const LinearResult r = run_linear(p, data, {}, chunks_of(4));
  CHECK(r.grad_weight.same_bits(clean.grad_weight));
  CHECK(r.sums.errors.count == 1);
  CHECK(r.sums.errors.first_row == 2);
  CHECK(r.sums.errors.value == 99);
  CHECK(r.sums.ce_sum == clean.sums.ce_sum);
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: fp16 keeps gradients that 1/N or small factors would lose") {
  // One count of 65537 valid rows over all micro-batches, and an upstream far below fp16's range.
  const LinearProblem p{7, 16, 40, DType::fp16};
  const LinearData data(p);
  Buffer denominator = vector(DType::fp32, {65537}), upstream = vector(DType::fp32, {3e-9});
  Buffer row_weights = vector(DType::fp32, {1e-5, 2e-5, 0, 4e-5, 5e-5, 3e-5, 1e-6});
  Buffer class_weights(DType::fp32, Shape{40});
  class_weights.fill([](auto, std::int64_t j) { return 1e3 * (1.0 + static_cast<double>(j % 3)); });
  loss::CrossEntropyOptions options;
  options.denominator = denominator;
  Wanted wanted{true, true, true};
  const auto check_head = [&] {
    // grad_input is fp16 itself: it is only compared where that can hold it.
    const auto want = reference_result(p, data, options);
    const LinearResult r = run_linear(p, data, options, chunks_of(3), wanted);
    check_sums(r.grad_weight, want.grad_weight, want.weight_bound, product_tolerance(p.dtype));
    check_sums(r.grad_bias, want.grad_bias, want.bias_bound, product_tolerance(p.dtype));
    return std::pair(r, want);
  };
  const auto [r, want] = check_head();
  for (std::size_t i = 0; i < want.grad_input.size(); ++i) {
    CHECK(std::fabs(r.grad_input[i] - want.grad_input[i]) <= 4e-3 * want.input_bound[i] + 0x1p-25);
  }
  options.upstream = upstream;
  check_head();
  options.row_weights = row_weights;
  options.class_weights = class_weights;
  check_head();
  options.logit_scale = 300;
  options.softcap = 30;
  const LinearResult scaled = run_linear(p, data, options, chunks_of(3), wanted);
  for (double value : scaled.grad_weight.values()) CHECK(std::isfinite(value));
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: fp16 with 65537 rows") {
  const LinearProblem p{65537, 1, 3, DType::fp16};
  LinearData data(p);
  data.inputs = Buffer(p.dtype, Shape{p.rows, 1}).fill([](auto, auto) { return 1; });
  data.weight = matrix(p.dtype, 3, {0, 0, 0});
  data.targets = targets(std::vector<std::int64_t>(p.rows, 1));
  const LinearResult r = run_linear(p, data, {}, chunks_of(8192));
  const std::vector<double> want{1.0 / 3, -2.0 / 3, 1.0 / 3};
  for (int v = 0; v < 3; ++v) CHECK(std::fabs(r.grad_weight[v] - want[v]) < 1e-3 * std::fabs(want[v]));
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: micro-batches and ranks with one global denominator") {
  // Rows of input 1 have loss ln 2, rows of input 0 have ln 4.
  const std::vector<double> weight{0, 0, -200, -200};
  Buffer global = vector(DType::fp32, {4});
  loss::CrossEntropyOptions options;
  options.denominator = global;
  const LinearProblem first{2, 1, 4}, second{3, 1, 4}, all{4, 1, 4};
  const LinearResult a = run_linear(first, with(first, {0, 5}, weight, {3, -100}), options);
  const LinearResult b = run_linear(second, with(second, {1, 1, 1}, weight, {0, 1, 0}), options);
  const LinearResult whole = run_linear(all, with(all, {0, 1, 1, 1}, weight, {3, 0, 1, 0}));
  CHECK(std::fabs((a.sums.ce_sum + b.sums.ce_sum) / 4 - .8664340) < 1e-6);
  for (int v = 0; v < 4; ++v) {
    // Ranks: the sum of their gradients.
    CHECK(std::fabs(a.grad_weight[v] + b.grad_weight[v] - whole.grad_weight[v]) < 1e-6);
  }
  // Micro-batches: accumulated in one buffer and one LossSums.
  const Context context = test_context(1);
  Sums sums(context);
  Buffer grad_weight(DType::fp32, Shape{4, 1});
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, second.shape());
  Scratch scratch(plan.workspace_bytes);
  LinearData data_a = with(first, {0, 5}, weight, {3, -100}), data_b = with(second, {1, 1, 1}, weight, {0, 1, 0});
  loss::chunked_linear_cross_entropy(context, plan, {data_a.inputs, data_a.weight, data_a.targets, {}}, options,
                                     {{}, loss::overwrite(grad_weight), {}}, scratch.workspace, sums.sums);
  loss::chunked_linear_cross_entropy(context, plan, {data_b.inputs, data_b.weight, data_b.targets, {}}, options,
                                     {{}, loss::accumulate(grad_weight), {}}, scratch.workspace, sums.sums);
  CHECK(std::fabs(sums.sums.read(context).mean_ce() - .8664340) < 1e-6);
  for (int v = 0; v < 4; ++v) CHECK(std::fabs(grad_weight[v] - whole.grad_weight[v]) < 1e-6);
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: none takes one upstream value per row") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{3, 1, 2, dtype};
    Buffer upstream = vector(DType::fp32, {1, 0, 10});
    loss::CrossEntropyOptions options;
    options.reduction = loss::Reduction::none;
    options.upstream = upstream;
    for (const std::int64_t chunk_rows : {1, 2, 3}) {
      const LinearResult r = run_linear(p, with(p, {1, 2, 3}, {0, 0}, {0, 0, 1}), options, chunks_of(chunk_rows));
      const double tolerance = dtype == DType::fp32 ? 1e-6 : 2e-3;
      CHECK(std::fabs(r.grad_weight[0] - 14.5) <= 14.5 * tolerance);
      CHECK(std::fabs(r.grad_weight[1] + 14.5) <= 14.5 * tolerance);
      for (double value : r.grad_input.values()) CHECK(value == 0);
      for (double value : r.row_loss.values()) CHECK(std::fabs(value - std::log(2)) < 1e-6);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: grad_weight is summed in fp32 over chunks") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType grad_dtype : {DType::fp32, dtype}) {
      const LinearProblem p{1024, 1, 2, dtype};
      loss::CrossEntropyOptions options;
      options.reduction = loss::Reduction::sum;
      loss::PlanOptions plan = chunks_of(1);
      plan.grad_weight_dtype = grad_dtype;
      const LinearData data = with(p, std::vector<double>(1024, 1), {0, 0}, std::vector<std::int64_t>(1024, 0));
      const LinearResult r = run_linear(p, data, options, plan);
      CHECK(r.grad_weight[0] == -512);
      CHECK(r.grad_weight[1] == 512);
      if (grad_dtype != DType::bf16 || dtype != DType::bf16) continue;
      // In the buffer's own dtype the same sum stalls where 1/2 falls below half its unit.
      plan.grad_weight_accum_dtype = loss::AccumDType::weight;
      const LinearResult stalled = run_linear(p, data, options, plan);
      CHECK(stalled.grad_weight[1] == 128);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: accumulating adds, overwriting does not read") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType grad_dtype : {DType::fp32, dtype}) {
      for (const auto accum : {loss::AccumDType::fp32, loss::AccumDType::weight}) {
        for (const std::int64_t chunk_rows : {2, 9}) {
          const LinearProblem p{9, 12, 31, dtype, 40, true};
          const LinearData data(p);
          loss::CrossEntropyOptions options;
          options.reduction = loss::Reduction::sum;
          const auto want = reference_result(p, data, options);
          loss::PlanOptions plan = chunks_of(chunk_rows);
          plan.grad_weight_dtype = grad_dtype;
          plan.grad_weight_accum_dtype = accum;
          Wanted wanted{true, true, true, true, 7};
          INFO("dtype " << std::string(name_of(dtype)));
          INFO("dtype " << std::string(name_of(grad_dtype)));
          CAPTURE(chunk_rows);
          check_linear(p, run_linear(p, data, options, plan, wanted), want, wanted);
          wanted = {true, true, true};  // buffers start as NaN
          check_linear(p, run_linear(p, data, options, plan, wanted), want, wanted);
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: frozen head, frozen inputs, and no gradient at all") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{21, 24, 65, dtype};
    const LinearData data(p);
    const LinearResult full = run_linear(p, data, {}, chunks_of(8));
    const LinearResult head = run_linear(p, data, {}, chunks_of(8), {true, false});
    const LinearResult inputs = run_linear(p, data, {}, chunks_of(8), {false, true});
    const LinearResult none = run_linear(p, data, {}, chunks_of(8), {false, false});
    CHECK(head.grad_input.same_bits(full.grad_input));
    CHECK(inputs.grad_weight.same_bits(full.grad_weight));
    for (const LinearResult* r : {&head, &inputs, &none}) {
      CHECK(r->sums.ce_sum == full.sums.ce_sum);
      CHECK(r->row_loss.same_bits(full.row_loss));
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: bias") {
  for (const std::int64_t padded : {3, 5}) {
    const LinearProblem p{1, 1, 3, DType::fp32, padded, true};
    std::vector<double> weight(padded, 0), bias{1, 2, 3};
    weight.resize(padded, not_a_number);
    bias.resize(padded, not_a_number);
    const LinearResult r = run_linear(p, with(p, {5}, weight, {2}, bias), {}, {}, {true, true, true});
    const std::vector<double> want{.0900306, .2447285, -.3347591};
    CHECK(std::fabs(r.sums.ce_sum - .4076060) < 1e-6);
    for (int v = 0; v < 3; ++v) {
      CHECK(std::fabs(r.grad_bias[v] - want[v]) < 1e-6);
      CHECK(std::fabs(r.grad_weight[v] - 5 * want[v]) < 5e-6);
    }
    for (std::int64_t v = 3; v < padded; ++v) {
      CHECK(r.grad_bias[v] == 0);
      CHECK(r.grad_weight[v] == 0);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: every option against fp64") {
  Buffer class_weights(DType::fp32, Shape{77}), row_weights(DType::fp32, Shape{19}), upstream(DType::fp32, Shape{19});
  class_weights.fill([](auto, std::int64_t j) { return 0.25 * static_cast<double>(1 + j % 7); });
  row_weights.fill([](auto, std::int64_t j) { return 0.5 * static_cast<double>(j % 4); });
  upstream.fill([](auto, std::int64_t j) { return static_cast<double>(j % 3) - 0.5; });
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (int bits = 0; bits < 128; bits += dtype == DType::fp32 ? 1 : 5) {
      loss::CrossEntropyOptions options;
      if (bits & 1) options.class_weights = class_weights;
      if (bits & 2) options.row_weights = row_weights;
      if (bits & 4) options.label_smoothing = 0.1f;
      if (bits & 8) options.z_loss_multiplier = 1e-2f;
      if (bits & 16) options.softcap = 3;
      if (bits & 32) options.logit_scale = 0.7f;
      if (bits & 64) {
        options.reduction = loss::Reduction::none;
        options.upstream = upstream;
      }
      const LinearProblem p{19, 11, 77, dtype, 80, (bits & 1) != 0};
      const LinearData data(p);
      const Wanted wanted{true, true, true};
      INFO("dtype " << std::string(name_of(dtype)));
      CAPTURE(bits);
      check_linear(p, run_linear(p, data, options, chunks_of(7), wanted), reference_result(p, data, options), wanted);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: a workspace used again, by a call with fewer tokens") {
  const LinearProblem large{20, 24, 65}, small{6, 24, 65};
  const Context context = test_context(2);
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, large.shape(), chunks_of(8));
  Scratch used(plan.workspace_bytes), fresh(plan.workspace_bytes);
  const auto call = [&](const LinearProblem& p, Scratch& scratch) {
    LinearData data(p);
    Sums sums(context);
    LinearResult r;
    r.grad_input = Buffer(DType::fp32, Shape{p.rows, p.hidden});
    r.grad_weight = Buffer(DType::fp32, Shape{p.vocab, p.hidden});
    loss::chunked_linear_cross_entropy(context, plan, {data.inputs, data.weight, data.targets, {}}, {},
                                       {loss::overwrite(r.grad_input), loss::overwrite(r.grad_weight), {}},
                                       scratch.workspace, sums.sums);
    r.sums = sums.data();
    return r;
  };
  call(large, used);
  const LinearResult a = call(small, used), b = call(small, fresh);
  CHECK(a.grad_input.same_bits(b.grad_input));
  CHECK(a.grad_weight.same_bits(b.grad_weight));
  CHECK(a.sums.ce_sum == b.sums.ce_sum);
  check_linear(small, run_linear(small, LinearData(small)), reference_result(small, LinearData(small), {}));
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: mistakes of the caller") {
  const LinearProblem p{4, 6, 9};
  const Context context = test_context(1);
  loss::PlanOptions without_input;
  without_input.grad_input = false;
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, p.shape(), without_input);
  LinearData data(p);
  Sums sums(context);
  Scratch scratch(plan.workspace_bytes), small(plan.workspace_bytes - memory_alignment);
  Buffer grad_input(DType::fp32, Shape{4, 6}), grad_weight(DType::fp32, Shape{9, 6}), half(DType::bf16, Shape{9, 6});
  const auto call = [&](Buffer& inputs, Buffer& weight, loss::LinearGradients gradients, Scratch& memory) {
    loss::chunked_linear_cross_entropy(context, plan, {inputs, weight, data.targets, {}}, {}, gradients,
                                       memory.workspace, sums.sums);
  };
  Buffer many(DType::fp32, Shape{5, 6}), narrow(DType::fp32, Shape{4, 5});
  CHECK_THROWS_WITH_AS(call(many, data.weight, {}, scratch), doctest::Contains("more than the 4 that were planned"),
                       Error);
  CHECK_THROWS_WITH_AS(call(narrow, data.weight, {}, scratch), doctest::Contains("inputs: expected shape [4, 6]"),
                       Error);
  CHECK_THROWS_WITH_AS(call(data.inputs, half, {}, scratch), doctest::Contains("weight: expected fp32"), Error);
  CHECK_THROWS_WITH_AS(call(data.inputs, data.weight, {loss::overwrite(grad_input), {}, {}}, scratch),
                       doctest::Contains("the plan was made without it"), Error);
  CHECK_THROWS_WITH_AS(call(data.inputs, data.weight, {{}, loss::overwrite(half), {}}, scratch),
                       doctest::Contains("grad_weight: expected fp32"), Error);
  CHECK_THROWS_WITH_AS(call(data.inputs, data.weight, {{}, loss::overwrite(grad_weight), {}}, small),
                       doctest::Contains("workspace: the plan needs"), Error);
}
