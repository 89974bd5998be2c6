// Sums over the rows of a call: the denominator, counted from the targets, and the losses. Each is made by one block in
// fp64 in an order that depends on N alone. Formulas: kernels/cross_entropy.h.
#include <greyhound/kernels/cross_entropy.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/targets.cuh>

namespace greyhound::cuda {

namespace {

// Thread t adds rows t, t + 1024, ..., then a fixed tree. With a single block at work its time is that of its loads one
// after the other, so several rows are on their way at once.
constexpr int sum_threads = 1024, rows_at_once = 4;

__global__ void __launch_bounds__(sum_threads) count_targets_kernel(const TargetArguments targets, float* out) {
  double sum = 0;
  for (std::int64_t first = threadIdx.x; first < targets.rows; first += rows_at_once * sum_threads) {
    std::int64_t target[rows_at_once];
    float weight[rows_at_once];
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) {
      const std::int64_t row = first + k * sum_threads;
      target[k] = row < targets.rows ? targets.index[row] : targets.ignore_index;
    }
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) {
      weight[k] = targets.valid(target[k]) ? targets.weight(first + k * sum_threads, target[k]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) sum += weight[k];
  }
  __shared__ double shared[max_warps];
  sum = block_reduce(sum, 0.0, shared, [](double& a, double b) { a += b; });
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

struct SumsOfCall {
  double ce, z, weight;
  std::int64_t valid, nonfinite, bad, first_bad;
};

__global__ void __launch_bounds__(sum_threads)
    sum_rows_kernel(const TargetArguments targets, const float* row_ce, const float* row_z, const float* row_weight,
                    LossSumsData* sums) {
  SumsOfCall own{0, 0, 0, 0, 0, 0, targets.rows};
  const SumsOfCall none = own;
  for (std::int64_t first = threadIdx.x; first < targets.rows; first += rows_at_once * sum_threads) {
    std::int64_t target[rows_at_once];
    float ce[rows_at_once], z[rows_at_once], weight[rows_at_once];
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) {
      const std::int64_t row = first + k * sum_threads;
      target[k] = targets.ignore_index;
      if (row >= targets.rows) continue;
      target[k] = targets.index[row];
      ce[k] = row_ce[row];
      z[k] = row_z[row];
      weight[k] = row_weight != nullptr ? row_weight[row] : 1.0f;
    }
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) {
      if (targets.valid(target[k])) {
        own.ce += ce[k];
        own.z += z[k];
        own.weight += weight[k];
        own.valid += 1;
        own.nonfinite += isfinite(ce[k]) && isfinite(z[k]) ? 0 : 1;
      } else if (!targets.ignored(target[k])) {
        own.bad += 1;
        own.first_bad = min(own.first_bad, first + k * sum_threads);
      }
    }
  }
  __shared__ SumsOfCall shared[max_warps];
  const SumsOfCall all = block_reduce(own, none, shared, [](SumsOfCall& a, const SumsOfCall& b) {
    a.ce += b.ce;
    a.z += b.z;
    a.weight += b.weight;
    a.valid += b.valid;
    a.nonfinite += b.nonfinite;
    a.bad += b.bad;
    a.first_bad = min(a.first_bad, b.first_bad);
  });
  if (threadIdx.x != 0) return;
  sums->ce_sum += all.ce;
  sums->z_sum += all.z;
  sums->weight_sum += all.weight;
  sums->n_valid += all.valid;
  sums->nonfinite_rows += all.nonfinite;
  if (all.bad == 0) return;
  if (sums->errors.count == 0) {
    sums->errors.first_row = all.first_bad;
    sums->errors.value = targets.index[all.first_bad];
  }
  sums->errors.count += all.bad;
}

}  // namespace

void count_targets(const Context& context, const CountTargets& args) {
  const DeviceScope device(context);
  count_targets_kernel<<<1, sum_threads, 0, stream_of(context.stream())>>>(
      target_arguments(args.targets, args.class_weights, args.row_weights), args.out.as<float>());
  check_launch("count_targets");
}

void sum_rows(const Context& context, const SumRows& args) {
  const DeviceScope device(context);
  sum_rows_kernel<<<1, sum_threads, 0, stream_of(context.stream())>>>(target_arguments(args.targets),
                                                                      args.row_ce.as<float>(), args.row_z.as<float>(),
                                                                      args.row_weight.as<float>(), args.sums);
  check_launch("sum_rows");
}

}  // namespace greyhound::cuda
