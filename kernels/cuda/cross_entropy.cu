// Cross-entropy of rows of logits with its gradient: one read and one write of the logits where a row fits in shared
// memory. Formulas: kernels/cross_entropy.h.
#include <greyhound/kernels/cross_entropy.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/row_statistics.cuh>
#include <greyhound/kernels/cuda/targets.cuh>

namespace greyhound::cuda {

namespace {

struct RowArguments {
  const void* logits;
  std::int64_t stride;
  void* grad;
  std::int64_t grad_stride;
  int vocab, columns;
  TargetArguments targets;
  float *row_ce, *row_z, *row_weight;
  float *loss, *lse, *target_logprob, *entropy;
  std::int32_t* argmax;
  RowValues upstream;
  const float* denominator;
  float z_loss_multiplier, label_smoothing;
  Squash squash;
  int cached_packs;
};

__device__ inline void put(float* output, std::int64_t row, float value) {
  if (output != nullptr) output[row] = value;
}

// Row results of a row that counts for nothing.
__device__ void write_skipped_row(const RowArguments& args, std::int64_t row, float optional_value) {
  args.row_ce[row] = 0;
  args.row_z[row] = 0;
  put(args.row_weight, row, 0);
  put(args.loss, row, optional_value);
  put(args.lse, row, optional_value);
  put(args.target_logprob, row, optional_value);
  put(args.entropy, row, optional_value);
  if (args.argmax != nullptr) args.argmax[row] = -1;
}

template <class T>
__device__ void write_zero_gradient(T* grad, int columns) {
  const bool aligned = is_packed_aligned(grad);
  const float zeros[packed_size<T>] = {};
  for (int first = threadIdx.x * packed_size<T>; first < columns; first += blockDim.x * packed_size<T>) {
    store_packed(grad, first, columns, aligned, zeros);
  }
}

// The gradient of one row: du_j = (probability * exp(z_j - max) - constant) * slope_j, and du_y.
struct GradientOfRow {
  float max;
  float probability;  // s w k logit_scale / S
  float constant;     // s w logit_scale e / V'
  float target;       // du_y
};

template <class T, bool softcap>
__device__ void write_gradient(const RowArguments& args, const T* logits, T* grad, int target, const GradientOfRow& row,
                               const uint4* row_cache) {
  constexpr int size = packed_size<T>;
  const bool aligned = is_packed_aligned(logits), grad_aligned = is_packed_aligned(grad);
  const int packs = (args.columns + size - 1) / size;
  const int target_pack = target / size;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    // Packs of padding alone are not in the cache.
    const bool cached = pack < args.cached_packs && pack * size < args.vocab;
    const Packed<T> loaded =
        cached ? Packed<T>{row_cache[pack]} : load_packed(logits, pack * size, args.columns, aligned);
    float values[size];
    unpack(loaded, values);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      float slope = 1;
      const float z = args.squash.apply<softcap>(values[i], softcap ? &slope : nullptr);
      const float gradient = (row.probability * row_exp<T>(z - row.max) - row.constant) * slope;
      values[i] = values[i] == -INFINITY ? 0.0f : gradient;
    }
    if (pack == target_pack || (pack + 1) * size > args.vocab) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if (pack * size + i == target) values[i] = row.target;
        if (pack * size + i >= args.vocab) values[i] = 0;
      }
    }
    store_packed(grad, pack * size, args.columns, grad_aligned, values);
  }
}

// One block per row; reads [N, V] once, writes [N, P] once, and again reads what did not fit in shared memory. Each
// thread owns the same packs of columns in both passes, and reductions follow a fixed tree: the same bits in every run.
// extras: entropy, argmax or label smoothing are wanted.
template <class T, bool softcap, bool extras>
__global__ void __launch_bounds__(1024) cross_entropy_kernel(const RowArguments args) {
  extern __shared__ uint4 row_cache[];
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.stride;
  T* grad = args.grad != nullptr ? static_cast<T*>(args.grad) + row * args.grad_stride : nullptr;

  const std::int64_t target = args.targets.index[row];
  if (!args.targets.valid(target)) {
    if (threadIdx.x == 0) write_skipped_row(args, row, args.targets.ignored(target) ? 0.0f : nanf(""));
    if (grad != nullptr) write_zero_gradient(grad, args.columns);
    return;
  }

  // The target's logit is read before the reduction's barriers, and so before any write. It is kept out of the sum: the
  // gradient needs S without it, since p_y - 1 would cancel.
  const int y = static_cast<int>(target);
  const float u_y = widen(logits[y]);
  float slope_y = 1;
  const float z_y = args.squash.apply<softcap>(u_y, softcap ? &slope_y : nullptr);
  RowStatistics s = row_statistics<T, softcap, extras>(logits, args.vocab, args.columns, y, args.squash, row_cache,
                                                       args.cached_packs);
  if (z_y > s.max) raise_max<T, extras>(s, z_y);
  const float max = s.max;
  const float other_sum = s.sum;
  const float target_gap = max - z_y;
  const float target_exp = row_exp<T>(-target_gap);
  const float sum = other_sum + target_exp;
  const float log_sum = log_of_sum(other_sum, target_exp);
  const float lse = max + log_sum;

  const float e = args.label_smoothing;
  const bool target_masked = u_y == -INFINITY;
  float smoothing = 0, smoothing_ce = 0;  // e / V', and its part of the loss
  if (extras && e > 0) {
    smoothing = e / static_cast<float>(s.count + (target_masked ? 0 : 1));
    smoothing_ce = smoothing * (s.gap_sum + (target_masked ? 0.0f : target_gap));
  }
  const float ce = (1.0f - e) * target_gap + smoothing_ce + log_sum;
  const float weight = args.targets.weight(row, target);

  if (threadIdx.x == 0) {
    args.row_ce[row] = weight * ce;
    args.row_z[row] = weight * (lse * lse);
    put(args.row_weight, row, weight);
    put(args.loss, row, weight * (args.z_loss_multiplier != 0 ? ce + args.z_loss_multiplier * (lse * lse) : ce));
    put(args.lse, row, lse);
    put(args.target_logprob, row, -target_gap - log_sum);
    if constexpr (extras) {
      const float target_part = target_masked ? 0.0f : target_exp * target_gap;
      put(args.entropy, row, log_sum + (s.entropy_sum + target_part) / sum);
      if (args.argmax != nullptr) {
        const bool target_is_top = u_y > s.argmax_value || (u_y == s.argmax_value && y < s.argmax);
        args.argmax[row] = target_is_top ? y : s.argmax;
      }
    }
  }
  if (grad == nullptr) return;

  const float denominator = args.denominator != nullptr ? *args.denominator : 1.0f;
  const float upstream = args.upstream[row];
  const float scale = denominator == 0 ? 0.0f : upstream / denominator * weight * args.squash.scale;
  const float k = 1.0f + 2.0f * args.z_loss_multiplier * lse;
  GradientOfRow gradient;
  gradient.max = max;
  gradient.probability = scale * k / sum;
  gradient.constant = scale * smoothing;
  const float at_target = -other_sum / sum + (k - 1.0f) * (target_exp / sum) + e - smoothing;
  gradient.target = scale * at_target * slope_y + 0.0f;  // + 0 makes a zero of any sign +0
  write_gradient<T, softcap>(args, logits, grad, y, gradient, row_cache);
}

template <class T, bool softcap, bool extras>
void launch_rows(const Context& context, RowArguments row_args, std::int64_t rows) {
  const std::size_t max_shared = cache_of(context).max_block_shared_bytes;
  const RowLaunch launch = row_launch(row_args.columns, sizeof(T), max_shared, row_args.grad != nullptr);
  row_args.cached_packs = launch.cached_packs;
  const auto kernel = cross_entropy_kernel<T, softcap, extras>;
  if (launch.shared_bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(launch.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  kernel<<<static_cast<unsigned>(rows), launch.threads, launch.shared_bytes, stream_of(context.stream())>>>(row_args);
  check_launch("cross_entropy_rows");
}

// Sums over all rows are made by one block in fp64: thread t adds rows t, t + 1024, ..., then a fixed tree.
constexpr int sum_threads = 1024;

__global__ void __launch_bounds__(sum_threads) count_targets_kernel(const TargetArguments targets, float* out) {
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < targets.rows; row += sum_threads) {
    const std::int64_t target = targets.index[row];
    if (targets.valid(target)) sum += targets.weight(row, target);
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
  for (std::int64_t row = threadIdx.x; row < targets.rows; row += sum_threads) {
    const std::int64_t target = targets.index[row];
    if (targets.valid(target)) {
      const float ce = row_ce[row], z = row_z[row];
      own.ce += ce;
      own.z += z;
      own.weight += row_weight != nullptr ? row_weight[row] : 1.0f;
      own.valid += 1;
      own.nonfinite += isfinite(ce) && isfinite(z) ? 0 : 1;
    } else if (!targets.ignored(target)) {
      own.bad += 1;
      own.first_bad = min(own.first_bad, row);
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

void cross_entropy_rows(const Context& context, const CrossEntropyRows& args) {
  const std::int64_t rows = args.targets.index.elements();
  require_row_sizes(rows, args.logits.columns(), "cross_entropy_rows");
  if (rows == 0) return;
  const DeviceScope device(context);
  RowArguments row_args{};
  row_args.logits = args.logits.data;
  row_args.stride = args.logits.row_stride;
  row_args.grad = args.grad.data;
  row_args.grad_stride = args.grad.row_stride;
  row_args.vocab = static_cast<int>(args.targets.vocab);
  row_args.columns = static_cast<int>(args.logits.columns());
  row_args.targets = target_arguments(args.targets, args.class_weights, args.row_weights);
  row_args.row_ce = args.row_ce.as<float>();
  row_args.row_z = args.row_z.as<float>();
  row_args.row_weight = args.row_weight.as<float>();
  row_args.loss = args.loss.as<float>();
  row_args.lse = args.lse.as<float>();
  row_args.target_logprob = args.target_logprob.as<float>();
  row_args.entropy = args.entropy.as<float>();
  row_args.argmax = static_cast<std::int32_t*>(args.argmax.data);
  row_args.upstream = row_values(args.upstream);
  row_args.denominator = args.denominator.as<float>();
  row_args.z_loss_multiplier = args.z_loss_multiplier;
  row_args.label_smoothing = args.label_smoothing;
  row_args.squash = {args.logit_scale, args.softcap};

  const bool softcap = args.softcap > 0;
  const bool extras = args.entropy || args.argmax || args.label_smoothing > 0;
  dispatch(args.logits.dtype, "logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto launch = softcap ? (extras ? launch_rows<T, true, true> : launch_rows<T, true, false>)
                                : (extras ? launch_rows<T, false, true> : launch_rows<T, false, false>);
    launch(context, row_args, rows);
  });
}

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
