// Tuning where there is nothing to tune.
#include <doctest/doctest.h>
#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/loss/tune.h>

using namespace greyhound;

TEST_CASE("tune does nothing on the CPU") {
  const Context context = Context::cpu(1);
  // Its operands would take terabytes.
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {4096, 1 << 16, 1 << 24, DType::bf16});
  loss::tune(context, plan, true);
  CHECK(save_matmul_choices(context).empty());
}
