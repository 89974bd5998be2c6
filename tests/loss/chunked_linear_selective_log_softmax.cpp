#include <tests/loss/selective_problem.h>

using namespace greyhound;
using namespace greyhound::test;

TEST_CASE_ON_EACH_BACKEND("chunked_linear_selective_log_softmax: values and gradients against fp64") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const LinearProblem& p : {LinearProblem{5, 3, 7, dtype}, LinearProblem{11, 40, 1031, dtype, 1040},
                                   LinearProblem{33, 17, 129, dtype, 136, true}, LinearProblem{1, 1, 1, dtype}}) {
      const LinearData data(p);
      for (const std::int64_t per_row : {0, 1, 2, 4}) {
        for (const std::int64_t chunk_rows : {1, 4, 100}) {
          if (chunk_rows != 4 && per_row != 2) continue;
          const Selection selection(p.rows, per_row, p.vocab, per_row == 2 ? dtype : DType::fp32);
          loss::SelectiveLogSoftmaxOptions options;
          if (per_row == 1) options.softcap = 3;
          if (per_row == 1) options.logit_scale = 0.7f;
          const Wanted wanted{true, true, true};
          CAPTURE(p.vocab);
          CAPTURE(per_row);
          CAPTURE(chunk_rows);
          check_selective(p, data, selection, run_selective(p, data, selection, options, chunks_of(chunk_rows), wanted),
                          options, wanted);
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_selective_log_softmax: accumulating adds, overwriting does not read") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType grad_dtype : {DType::fp32, dtype}) {
      for (const auto accum : {loss::AccumDType::fp32, loss::AccumDType::weight}) {
        for (const bool accumulate : {false, true}) {
          const LinearProblem p{9, 12, 31, dtype, 40, true};
          const LinearData data(p);
          const Selection selection(p.rows, 3, p.vocab);
          loss::PlanOptions plan = chunks_of(2);
          plan.grad_weight_dtype = grad_dtype;
          plan.grad_weight_accum_dtype = accum;
          const Wanted wanted{true, true, true, accumulate, accumulate ? 7.0 : 0.0};
          check_selective(p, data, selection, run_selective(p, data, selection, {}, plan, wanted), {}, wanted);
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_selective_log_softmax: fp16 keeps gradients of small factors") {
  const LinearProblem p{7, 16, 40, DType::fp16};
  const LinearData data(p);
  const Selection selection(p.rows, 2, p.vocab, DType::fp32, 1e-9);
  const Wanted wanted{false, true, true};
  check_selective(p, data, selection, run_selective(p, data, selection, {}, chunks_of(3), wanted), {}, wanted);
  const Selection zero(p.rows, 2, p.vocab, DType::fp32, 0);
  const SelectiveResult none = run_selective(p, data, zero, {}, chunks_of(3), wanted);
  for (const double value : none.gradients.grad_weight.values()) CHECK(value == 0);
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_selective_log_softmax: frozen sides, threads, and no rows") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{21, 24, 65, dtype};
    const LinearData data(p);
    const Selection selection(p.rows, 2, p.vocab);
    const SelectiveResult full = run_selective(p, data, selection, {}, chunks_of(8));
    const SelectiveResult head = run_selective(p, data, selection, {}, chunks_of(8), {true, false});
    const SelectiveResult inputs = run_selective(p, data, selection, {}, chunks_of(8), {false, true});
    const SelectiveResult none = run_selective(p, data, selection, {}, chunks_of(8), {false, false});
    CHECK(head.gradients.grad_input.same_bits(full.gradients.grad_input));
    CHECK(inputs.gradients.grad_weight.same_bits(full.gradients.grad_weight));
    for (const SelectiveResult* r : {&head, &inputs, &none}) CHECK(r->out.same_bits(full.out));
    for (const int threads : {1, 4}) {
      const SelectiveResult again = run_selective(p, data, selection, {}, chunks_of(8), {}, threads);
      CHECK(again.out.same_bits(full.out));
      CHECK(again.lse.same_bits(full.lse));
      CHECK(again.gradients.grad_input.same_bits(full.gradients.grad_input));
      CHECK(again.gradients.grad_weight.same_bits(full.gradients.grad_weight));
    }
    const LinearProblem empty{0, 8, 10, dtype, 12};
    const SelectiveResult zero =
        run_selective(empty, LinearData(empty), Selection(0, 0, 10), {}, {}, {true, true, true});
    CHECK(zero.gradients.grad_weight.all_zero_bits());
    CHECK(zero.gradients.grad_bias.all_zero_bits());
    const SelectiveResult kept =
        run_selective(empty, LinearData(empty), Selection(0, 3, 10), {}, {}, {true, true, true, true, 7});
    for (const double value : kept.gradients.grad_weight.values()) CHECK(value == 7);
  }
}

TEST_CASE_ON_EACH_BACKEND(
    "chunked_linear_selective_log_softmax: rows without a valid index stay out of grad_weight, whatever they hold") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{9, 8, 20, dtype};
    LinearData data(p);
    Selection selection(p.rows, 2, p.vocab);
    selection.index.set_index(2, 0, 99);
    selection.index.set_index(2, 1, -1);
    Errors counted;
    loss::SelectiveLogSoftmaxOptions options;
    options.errors = counted.on_device();
    const SelectiveResult clean = run_selective(p, data, selection, options, chunks_of(2));
    const ErrorWord errors = counted.read();
    CHECK(errors.count == 4);  // two in the forward, two in the backward
    CHECK(errors.first_row == 2);
    CHECK(errors.value == 99);
    for (const std::int64_t row : {2, 4}) {
      for (std::int64_t d = 0; d < 8; ++d) data.inputs.set(row, d, d % 2 ? not_a_number : infinity);
      selection.grad_out.set(row, 0, not_a_number);
      selection.grad_out.set(row, 1, infinity);
    }
    const SelectiveResult r = run_selective(p, data, selection, options, chunks_of(2));
    CHECK(r.gradients.grad_weight.same_bits(clean.gradients.grad_weight));
    for (std::int64_t d = 0; d < 8; ++d) {
      CHECK(r.gradients.grad_input.at(2, d) == 0);
      CHECK(r.gradients.grad_input.at(4, d) == 0);
    }
    CHECK(std::isnan(r.out.at(2, 0)));
    CHECK(r.out.at(4, 0) == 0);
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_selective_log_softmax: a workspace used again, by a call with fewer tokens") {
  const LinearProblem large{20, 24, 65, DType::fp16}, small{6, 24, 65, DType::fp16};
  const Context context = test_context(2);
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, large.shape(), chunks_of(8));
  Scratch used(plan.workspace_bytes), fresh(plan.workspace_bytes);
  const auto call = [&](const LinearProblem& p, Scratch& scratch) {
    LinearData data(p);
    Selection selection(p.rows, 0, p.vocab);
    Buffer lse(DType::fp32, Shape{p.rows}), out(DType::fp32, Shape{p.rows}), grad_weight(DType::fp32, Shape{65, 24});
    const loss::LinearIndex in{data.inputs, data.weight, selection.index, {}};
    loss::chunked_linear_selective_log_softmax(context, plan, in, out, {}, scratch.workspace, lse);
    loss::chunked_linear_selective_log_softmax_backward(context, plan, in, selection.grad_out, lse, {},
                                                        {{}, loss::overwrite(grad_weight), {}}, scratch.workspace);
    return std::pair(out, grad_weight);
  };
  call(large, used);
  const auto a = call(small, used), b = call(small, fresh);
  CHECK(a.first.same_bits(b.first));
  CHECK(a.second.same_bits(b.second));
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_selective_log_softmax: leading dimensions, and mistakes of the caller") {
  const LinearProblem p{6, 5, 12};
  LinearData data(p);
  Buffer dense(DType::fp32, Shape{6, 5});
  dense.fill([&](std::int64_t i, std::int64_t d) { return data.inputs.at(i, d); });
  Buffer index = targets({1, 2, 3, 4, 5, 6}), flat(DType::fp32, Shape{6}), deep(DType::fp32, Shape{2, 3});
  const Context context = test_context(1);
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, p.shape());
  Scratch scratch(plan.workspace_bytes);
  const auto call = [&](const ConstTensor& inputs, const ConstTensor& classes, const Tensor& out,
                        const loss::SelectiveLogSoftmaxOptions& options = {}) {
    loss::chunked_linear_selective_log_softmax(context, plan, {inputs, data.weight, classes, {}}, out, options,
                                               scratch.workspace);
  };
  call(dense, index, flat);
  call(ConstTensor(dense).reshape({2, 3, 5}), ConstTensor(index).reshape({2, 3}), deep);
  for (int i = 0; i < 6; ++i) CHECK(deep[i] == flat[i]);
  CHECK_THROWS_WITH_AS(call(dense, index, deep), doctest::Contains("out: expected index's shape [6]"), Error);
  CHECK_THROWS_WITH_AS(call(dense, ConstTensor(index).reshape({2, 3}), deep), doctest::Contains("index"), Error);
  loss::SelectiveLogSoftmaxOptions options;
  options.vocab = 11;
  CHECK_THROWS_WITH_AS(call(dense, index, flat, options), doctest::Contains("vocab"), Error);
  CHECK(scratch.workspace.used() == 0);
}
