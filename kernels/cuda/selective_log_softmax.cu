// Log-probabilities of chosen classes: one read of the logits. Formulas: kernels/selective_log_softmax.h.
#include <greyhound/kernels/selective_log_softmax.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/class_indices.cuh>
#include <greyhound/kernels/cuda/row_statistics.cuh>

namespace greyhound::cuda {

namespace {

struct SelectArguments {
  const void* logits;
  std::int64_t stride;
  int vocab, columns;
  IndexArguments index;
  void* out;
  std::int64_t out_stride;
  float* lse;
  Squash squash;
};

// One block per row; sums follow a fixed tree.
template <class T, class Out, bool softcap>
__global__ void __launch_bounds__(1024) select_kernel(const SelectArguments args) {
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.stride;
  Out* out = static_cast<Out*>(args.out) + row * args.out_stride;

  // The first valid class is kept out of the sum, so that a log-probability near 0 keeps its precision.
  std::int64_t first = -1;
  for (std::int64_t k = 0; k < args.index.per_row && first < 0; ++k) {
    const std::int64_t index = args.index.at(row, k);
    if (args.index.valid(index)) first = index;
  }
  float max = 0, log_sum = 0;
  if (first >= 0) {
    RowStatistics s = row_statistics<T, softcap, false>(logits, args.vocab, args.columns, static_cast<int>(first),
                                                        args.squash, nullptr, 0);
    const float z = args.squash.apply<softcap>(widen(logits[first]));
    if (z > s.max) raise_max<T, false>(s, z);
    max = s.max;
    log_sum = log_of_sum(s.sum, row_exp<T>(z - max));
  }
  if (threadIdx.x == 0 && args.lse != nullptr) args.lse[row] = max + log_sum;
  for (std::int64_t k = threadIdx.x; k < args.index.per_row; k += blockDim.x) {
    const std::int64_t index = args.index.at(row, k);
    float value = args.index.ignored(index) ? 0.0f : nanf("");
    if (args.index.valid(index)) value = args.squash.apply<softcap>(widen(logits[index])) - max - log_sum;
    out[k] = narrow<Out>(value);
  }
}

constexpr int check_threads = 1024;

struct BadIndices {
  std::int64_t count, first;
};

// The indices out of range, found by one block: the first is the first in every run.
__global__ void __launch_bounds__(check_threads) check_indices_kernel(const IndexArguments args, ErrorWord* errors) {
  const std::int64_t elements = args.rows * args.per_row;
  const BadIndices none{0, elements};
  BadIndices own = none;
  for (std::int64_t i = threadIdx.x; i < elements; i += check_threads) {
    const std::int64_t index = args.at(i / args.per_row, i % args.per_row);
    if (args.valid(index) || args.ignored(index)) continue;
    own.count += 1;
    own.first = min(own.first, i);
  }
  __shared__ BadIndices shared[max_warps];
  const BadIndices all = block_reduce(own, none, shared, [](BadIndices& a, const BadIndices& b) {
    a.count += b.count;
    a.first = min(a.first, b.first);
  });
  if (threadIdx.x != 0 || all.count == 0) return;
  if (errors->count == 0) {
    errors->first_row = all.first / args.per_row;
    errors->value = args.at(errors->first_row, all.first % args.per_row);
  }
  errors->count += all.count;
}

template <class T, class Out>
void launch_select(const Context& context, const SelectArguments& args, std::int64_t rows) {
  const RowLaunch launch = row_launch(args.columns, sizeof(T), cache_of(context).max_block_shared_bytes, false);
  const auto kernel = args.squash.cap > 0 ? select_kernel<T, Out, true> : select_kernel<T, Out, false>;
  kernel<<<static_cast<unsigned>(rows), launch.threads, 0, stream_of(context.stream())>>>(args);
  check_launch("selective_log_softmax_rows");
}

}  // namespace

void selective_log_softmax_rows(const Context& context, const SelectiveLogSoftmax& args) {
  const std::int64_t rows = args.logits.rows();
  require_row_sizes(rows, args.logits.columns(), "selective_log_softmax");
  if (rows == 0) return;
  const DeviceScope device(context);
  SelectArguments select{};
  select.logits = args.logits.data;
  select.stride = args.logits.row_stride;
  select.vocab = static_cast<int>(args.vocab);
  select.columns = static_cast<int>(args.logits.columns());
  select.index = index_arguments(args.index, args.vocab, args.ignore_index);
  select.out = args.out.data;
  select.out_stride = args.out.shape.rank() == 1 ? 1 : args.out.row_stride;
  select.lse = args.lse.as<float>();
  select.squash = {args.logit_scale, args.softcap};
  dispatch(args.logits.dtype, "logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.out.dtype == DType::fp32) {
      launch_select<T, float>(context, select, rows);
    } else {
      launch_select<T, T>(context, select, rows);
    }
  });
  if (args.errors != nullptr) cuda::check_indices(context, {args.index, args.vocab, args.ignore_index, args.errors});
}

void check_indices(const Context& context, const CheckIndices& args) {
  if (args.index.elements() == 0) return;
  const DeviceScope device(context);
  check_indices_kernel<<<1, check_threads, 0, stream_of(context.stream())>>>(
      index_arguments(args.index, args.vocab, args.ignore_index), args.errors);
  check_launch("check_indices");
}

}  // namespace greyhound::cuda
