// Log-probabilities of chosen classes: one read of the logits. Formulas: kernels/selective_log_softmax.h.
#include <greyhound/kernels/selective_log_softmax.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/class_indices.cuh>
#include <greyhound/kernels/cuda/row_stream_launch.cuh>

namespace greyhound::cuda {

namespace {

struct SelectArguments {
  const void* logits;
  std::int64_t stride, rows;
  int vocab, columns;
  IndexArguments index;
  void* out;
  std::int64_t out_stride;
  float* lse;
  Squash squash;

  template <class T>
  __device__ const T* row_logits(std::int64_t row) const {
    return static_cast<const T*>(logits) + row * stride;
  }

  // The first valid class, kept out of the sum, so that a log-probability near 0 keeps its precision; -1: none.
  __device__ std::int64_t first_valid(std::int64_t row) const {
    for (std::int64_t k = 0; k < index.per_row; ++k) {
      if (index.valid(index.at(row, k))) return index.at(row, k);
    }
    return -1;
  }

  // Log S, with the class that was kept out.
  template <class T>
  __device__ static float log_sum(RowStatistics& s, float z) {
    if (z > s.max) raise_max<T, false>(s, z);
    return log_of_sum(s.sum, row_exp<T>(z - s.max));
  }

  // The row's outputs: `max` and `log_sum` are 0 for a row that was not read. By `threads` threads.
  template <class T, class Out, bool squashed>
  __device__ void write(std::int64_t row, float max, float log_sum, int thread, int threads) const {
    Out* to = static_cast<Out*>(out) + row * out_stride;
    if (thread == 0 && lse != nullptr) lse[row] = max + log_sum;
    for (std::int64_t k = thread; k < index.per_row; k += threads) {
      const std::int64_t column = index.at(row, k);
      float value = index.ignored(column) ? 0.0f : nanf("");
      if (index.valid(column)) value = squash.apply<squashed>(widen(row_logits<T>(row)[column])) - max - log_sum;
      to[k] = narrow<Out>(value);
    }
  }
};

// The part that row_stream.cuh leaves to its task.
template <class T, class Out, bool squashed>
struct SelectTask : StreamTask<T, squashed, false, false> {
  SelectArguments args;

  explicit SelectTask(const SelectArguments& arguments) : args(arguments) {}

  __device__ const Squash& squash() const { return args.squash; }
  __device__ static constexpr bool writes() { return false; }
  __device__ bool reads(std::int64_t row) const { return args.first_valid(row) >= 0; }

  __device__ RowHeader header(std::int64_t row) const {
    RowHeader header{};
    header.target = static_cast<int>(args.first_valid(row));
    if (header.target >= 0) header.logit = widen(args.row_logits<T>(row)[header.target]);
    return header;
  }

  __device__ void record(std::int64_t row, const RowHeader& header, RowStatistics s, int lane) const {
    if (header.target < 0) return args.write<T, Out, squashed>(row, 0, 0, lane, warp_size);
    const float z = args.squash.apply<squashed>(header.logit);
    const float log_sum = SelectArguments::log_sum<T>(s, z);
    if (args.index.per_row > 1) return args.write<T, Out, squashed>(row, s.max, log_sum, lane, warp_size);
    if (lane != 0) return;  // one class a row: nothing has to be read again
    if (args.lse != nullptr) args.lse[row] = s.max + log_sum;
    static_cast<Out*>(args.out)[row * args.out_stride] = narrow<Out>(z - s.max - log_sum);
  }
};

// One block per row; sums follow a fixed tree. For the rows that cannot be streamed.
template <class T, class Out, bool squashed>
__global__ void __launch_bounds__(1024) select_kernel(const SelectArguments args) {
  const std::int64_t row = blockIdx.x;
  const T* logits = args.row_logits<T>(row);
  const std::int64_t first = args.first_valid(row);
  float max = 0, log_sum = 0;
  if (first >= 0) {
    RowStatistics s = row_statistics<T, squashed, false>(logits, args.vocab, args.columns, static_cast<int>(first),
                                                         args.squash, nullptr, 0);
    log_sum = SelectArguments::log_sum<T>(s, args.squash.apply<squashed>(widen(logits[first])));
    max = s.max;
  }
  args.write<T, Out, squashed>(row, max, log_sum, threadIdx.x, blockDim.x);
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

template <class T, class Out, bool squashed>
void launch_select(const Context& context, const SelectArguments& args) {
  if (streams_rows(context, args.vocab, sizeof(T)) &&
      launch_stream(context, SelectTask<T, Out, squashed>(args),
                    StreamedRows{args.logits, args.stride, args.rows, args.vocab}, false)) {
    return;
  }
  const RowLaunch launch = row_launch(args.columns, sizeof(T), cache_of(context).max_block_shared_bytes, false);
  select_kernel<T, Out, squashed>
      <<<static_cast<unsigned>(args.rows), launch.threads, 0, stream_of(context.stream())>>>(args);
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
  select.rows = rows;
  select.vocab = static_cast<int>(args.vocab);
  select.columns = static_cast<int>(args.logits.columns());
  select.index = index_arguments(args.index, args.vocab, args.ignore_index);
  select.out = args.out.data;
  select.out_stride = args.out.shape.rank() == 1 ? 1 : args.out.row_stride;
  select.lse = args.lse.as<float>();
  select.squash = {args.logit_scale, args.softcap};
  dispatch(args.logits.dtype, "logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool squashed = select.squash.active();
    if (args.out.dtype == DType::fp32) {
      squashed ? launch_select<T, float, true>(context, select) : launch_select<T, float, false>(context, select);
    } else {
      squashed ? launch_select<T, T, true>(context, select) : launch_select<T, T, false>(context, select);
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
