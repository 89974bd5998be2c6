// Cross-entropy of rows of logits with its gradient: one read and one write of the logits where a row fits in shared
// memory. Formulas: kernels/cross_entropy.h.
#include <greyhound/kernels/cross_entropy.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/cross_entropy_stream.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/cross_entropy_row.cuh>

namespace greyhound::cuda {

namespace {

// Room in shared memory for the row, filled by the first pass and read by the second.
struct RowCache {
  uint4* packs;
  int count;
};

template <class T, bool squashed, bool plain>
__device__ void write_gradient(const CrossEntropyArguments& args, const T* logits, T* grad, const RowGradient& row,
                               const RowCache& cache) {
  constexpr int size = packed_size<T>;
  const bool aligned = is_packed_aligned(logits), grad_aligned = is_packed_aligned(grad);
  const int packs = (args.columns + size - 1) / size;
  const int target = row.loss.target.column;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    // Packs of padding alone are not in the cache.
    const bool cached = pack < cache.count && pack * size < args.vocab;
    const Packed<T> loaded =
        cached ? Packed<T>{cache.packs[pack]} : load_packed(logits, pack * size, args.columns, aligned);
    float values[size];
    unpack(loaded, values);
    row.apply<T, squashed, plain>(args.squash, values);
    if (pack == target / size || (pack + 1) * size > args.vocab) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if (pack * size + i == target) values[i] = row.at_target(args.label_smoothing);
        if (pack * size + i >= args.vocab) values[i] = 0;
      }
    }
    store_packed(grad, pack * size, args.columns, grad_aligned, values);
  }
}

// One block per row; reads [N, V] once, writes [N, P] once, and again reads what did not fit in shared memory. Each
// thread owns the same packs of columns in both passes, and reductions follow a fixed tree: the same bits in every run.
// For short rows and for devices before Hopper: cross_entropy_stream.cu is faster on long ones.
template <class T, bool squashed, bool extras>
__global__ void __launch_bounds__(1024) cross_entropy_kernel(const CrossEntropyArguments args, int cached_packs) {
  extern __shared__ uint4 row_cache[];
  const RowCache cache{row_cache, cached_packs};
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.stride;
  T* grad = args.grad != nullptr ? static_cast<T*>(args.grad) + row * args.grad_stride : nullptr;

  const std::int64_t y = args.targets.index[row];
  if (!args.targets.valid(y)) {
    if (threadIdx.x == 0) write_skipped_row(args, row, args.targets.ignored(y) ? 0.0f : nanf(""));
    if (grad != nullptr) write_zeros(grad, threadIdx.x, blockDim.x, args.columns);
    return;
  }

  // The target's logit is read before the reduction's barriers, and so before any write.
  const auto target = TargetLogit::make<squashed>(args.squash, static_cast<int>(y), widen(logits[y]));
  RowStatistics s = row_statistics<T, squashed, extras>(logits, args.vocab, args.columns, target.column, args.squash,
                                                        cache.packs, cache.count);
  const RowLoss loss = row_loss<T, extras>(args, s, target, args.targets.weight(row, y));
  if (threadIdx.x == 0) write_row<extras>(args, row, s, loss);
  if (grad == nullptr) return;
  const RowGradient gradient(args, loss, args.upstream_of(row));
  if (gradient.plain()) {
    write_gradient<T, squashed, true>(args, logits, grad, gradient, cache);
  } else {
    write_gradient<T, squashed, false>(args, logits, grad, gradient, cache);
  }
}

template <class T, bool squashed, bool extras>
void launch_rows(const Context& context, const CrossEntropyArguments& args) {
  const std::size_t max_shared = cache_of(context).max_block_shared_bytes;
  const RowLaunch launch = row_launch(args.columns, sizeof(T), max_shared, args.grad != nullptr);
  const auto kernel = cross_entropy_kernel<T, squashed, extras>;
  if (launch.shared_bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(launch.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  kernel<<<static_cast<unsigned>(args.rows), launch.threads, launch.shared_bytes, stream_of(context.stream())>>>(
      args, launch.cached_packs);
  check_launch("cross_entropy_rows");
}

}  // namespace

void cross_entropy_rows(const Context& context, const CrossEntropyRows& args) {
  const std::int64_t rows = args.targets.index.elements();
  require_row_sizes(rows, args.logits.columns(), "cross_entropy_rows");
  if (rows == 0) return;
  const DeviceScope device(context);
  CrossEntropyArguments row_args{};
  row_args.rows = rows;
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

  const bool extras = args.entropy || args.argmax || args.label_smoothing > 0;
  if (stream_cross_entropy(context, args.logits.dtype, row_args, extras)) return;
  const bool squashed = row_args.squash.active();
  dispatch(args.logits.dtype, "logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto launch = squashed ? (extras ? launch_rows<T, true, true> : launch_rows<T, true, false>)
                                 : (extras ? launch_rows<T, false, true> : launch_rows<T, false, false>);
    launch(context, row_args);
  });
}

}  // namespace greyhound::cuda
