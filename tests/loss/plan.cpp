#include <doctest/doctest.h>
#include <greyhound/loss/plan.h>
#include <tests/loss/buffer.h>

using namespace greyhound;
using namespace greyhound::test;
using loss::plan_chunked_linear_loss;

TEST_CASE_ON_EACH_BACKEND("plan: chunks cover the tokens, and the default follows from the shape") {
  const Context context = test_context(1);
  for (const std::int64_t tokens : {1, 5, 256, 257, 1000, 8192}) {
    const loss::Plan plan = plan_chunked_linear_loss(context, {tokens, 16, 100});
    CHECK(plan.chunk_rows >= 1);
    CHECK(plan.chunk_rows <= tokens);
    CHECK(plan.chunks * plan.chunk_rows >= tokens);
    CHECK((plan.chunks - 1) * plan.chunk_rows < tokens);
    CHECK(plan.workspace_alignment == memory_alignment);
    CHECK(plan_chunked_linear_loss(context, {tokens, 16, 100}).workspace_bytes == plan.workspace_bytes);
  }
  CHECK(plan_chunked_linear_loss(context, {0, 16, 100}).chunks == 0);
}

TEST_CASE_ON_EACH_BACKEND("plan: chunk_rows is taken as given, up to the tokens") {
  const Context context = test_context(1);
  for (const std::int64_t rows : {1, 3, 5, 100}) {
    loss::PlanOptions options;
    options.chunk_rows = rows;
    CHECK(plan_chunked_linear_loss(context, {5, 3, 7}, options).chunk_rows == std::min<std::int64_t>(rows, 5));
  }
}

TEST_CASE_ON_EACH_BACKEND("plan: a budget is kept, and one byte under the smallest is an error that names it") {
  const Context context = test_context(2);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const loss::LinearShape shape{600, 32, 1000, dtype};
    loss::PlanOptions options;
    options.grad_weight_dtype = dtype;
    options.chunk_rows = 1;
    const std::size_t least = plan_chunked_linear_loss(context, shape, options).workspace_bytes;
    options.chunk_rows = 600;
    const std::size_t most = plan_chunked_linear_loss(context, shape, options).workspace_bytes;
    options.chunk_rows = 0;
    std::int64_t before = 0;
    for (std::size_t budget = least; budget < 2 * most; budget += budget / 7) {
      options.max_workspace_bytes = budget;
      const loss::Plan plan = plan_chunked_linear_loss(context, shape, options);
      CHECK(plan.workspace_bytes <= budget);
      CHECK(plan.chunks * plan.chunk_rows >= 600);
      CHECK(plan.chunk_rows >= before / 2);  // more memory, longer chunks, up to their balancing
      before = plan.chunk_rows;
    }
    options.max_workspace_bytes = least;
    CHECK(plan_chunked_linear_loss(context, shape, options).chunk_rows >= 1);
    options.max_workspace_bytes = least - 1;
    CHECK_THROWS_WITH_AS(plan_chunked_linear_loss(context, shape, options),
                         doctest::Contains(("the smallest that works is " + std::to_string(least)).c_str()), Error);
  }
}

TEST_CASE_ON_EACH_BACKEND("plan: what is not asked for takes no memory") {
  const Context context = test_context(1);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const auto bytes = [&](bool grad_input, bool grad_weight, DType grad_dtype, loss::AccumDType accum) {
      loss::PlanOptions options;
      options.chunk_rows = 64;
      options.grad_input = grad_input;
      options.grad_weight = grad_weight;
      options.grad_weight_dtype = grad_dtype;
      options.grad_weight_accum_dtype = accum;
      return plan_chunked_linear_loss(context, {500, 64, 777, dtype}, options).workspace_bytes;
    };
    const auto fp32 = loss::AccumDType::fp32;
    const std::size_t full = bytes(true, true, DType::fp32, fp32);
    CHECK(bytes(false, true, DType::fp32, fp32) <= full);
    CHECK(bytes(true, false, DType::fp32, fp32) <= full);
    CHECK(bytes(false, false, DType::fp32, fp32) <= bytes(true, false, DType::fp32, fp32));
    if (dtype == DType::fp32) continue;
    const std::size_t accumulator = Workspace::size(DType::fp32, {777, 64});
    CHECK(bytes(true, true, dtype, fp32) >= full - 4096 + accumulator);
    CHECK(bytes(true, true, dtype, loss::AccumDType::weight) < full + accumulator);
  }
}

TEST_CASE_ON_EACH_BACKEND("plan: mistakes of the caller") {
  const Context context = test_context(1);
  loss::PlanOptions both;
  both.chunk_rows = 1;
  both.max_workspace_bytes = 1 << 20;
  CHECK_THROWS_WITH_AS(plan_chunked_linear_loss(context, {5, 3, 7}, both), doctest::Contains("not both"), Error);
  CHECK_THROWS_WITH_AS(plan_chunked_linear_loss(context, {5, 3, 7, DType::fp32, 6}),
                       doctest::Contains("padded_vocab 6"), Error);
  CHECK_THROWS_WITH_AS(plan_chunked_linear_loss(context, {5, 0, 7}), doctest::Contains("hidden >= 1"), Error);
  CHECK_THROWS_WITH_AS(plan_chunked_linear_loss(context, {5, 3, 7, DType::int32}), doctest::Contains("int32"), Error);
  loss::PlanOptions mixed;
  mixed.grad_weight_dtype = DType::fp16;
  CHECK_THROWS_WITH_AS(plan_chunked_linear_loss(context, {5, 3, 7, DType::bf16}, mixed),
                       doctest::Contains("grad_weight_dtype"), Error);
}
