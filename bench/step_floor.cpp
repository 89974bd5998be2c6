#include "step_floor.h"

#include "random_data.h"
#include "timing.h"

#include <greyhound/core/arena.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/matmul.h>
#include <greyhound/kernels/matmul_choices.h>

namespace greyhound::bench {

DeviceRates measure_rates(const Context& context, DType dtype) {
  const bool cuda = context.device().is_cuda();
  const std::int64_t side = !cuda ? 1024 : dtype == DType::fp32 ? 4096 : 8192;
  const Shape square = {side, side};
  Matmul product;
  product.transpose_b = true;
  // Their shapes say how much workspace the product takes.
  product.a = product.b = Tensor(nullptr, dtype, square, context.device());
  product.out = Tensor(nullptr, dtype, square, context.device());
  // Larger than any cache.
  const std::int64_t copied = std::int64_t{cuda ? 512 : 128} << 20;
  ArenaPlan plan;
  const auto a = plan.add("operands", "a", dtype, square), b = plan.add("operands", "b", dtype, square);
  const auto out = plan.add("operands", "out", dtype, square);
  const auto from = plan.add("copy", "from", DType::uint8, {copied}),
             to = plan.add("copy", "to", DType::uint8, {copied});
  const auto scratch = plan.add("workspace", "workspace", DType::uint8,
                                {static_cast<std::int64_t>(matmul_workspace_bytes(context, product))});
  const Arena arena(context, plan);
  product.a = arena[a];
  product.b = arena[b];
  product.out = arena[out];
  fill_random(context, arena[a], 1, 1);
  fill_random(context, arena[b], 1, 2);
  Workspace workspace(arena[scratch]);
  tune_matmul(context, product, workspace);

  const Comparison times = compare(
      context, [&] { matmul(context, product, workspace); }, [&] { copy(context, arena[to], arena[from]); },
      {cuda ? 0.5 : 1.0, 5, 100});
  const double cube = static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side);
  return {2e3 * cube / times.work.median, 2e3 * static_cast<double>(copied) / times.floor.median};
}

}  // namespace greyhound::bench
