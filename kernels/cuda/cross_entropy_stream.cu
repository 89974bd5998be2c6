// Cross-entropy of long rows: one read and one write of the logits at close to the memory's speed.
#include <greyhound/kernels/cuda/cross_entropy_stream.h>

#include <greyhound/kernels/cuda/cross_entropy_row.cuh>
#include <greyhound/kernels/cuda/row_stream_launch.cuh>

namespace greyhound::cuda {

namespace {

// The part of cross-entropy that row_stream.cuh leaves to its task.
template <class T, bool squashed, bool extras>
struct CrossEntropyTask : StreamTask<T, squashed, extras, true> {
  CrossEntropyArguments args;

  explicit CrossEntropyTask(const CrossEntropyArguments& arguments) : args(arguments) {}

  __device__ const Squash& squash() const { return args.squash; }
  __device__ int columns() const { return args.columns; }
  __device__ bool writes() const { return args.grad != nullptr; }
  __device__ T* out(std::int64_t row) const { return static_cast<T*>(args.grad) + row * args.grad_stride; }
  __device__ bool reads(std::int64_t row) const { return args.targets.valid(args.targets.index[row]); }

  __device__ RowHeader header(std::int64_t row) const {
    RowHeader header{};
    const std::int64_t target = args.targets.index[row];
    if (!args.targets.valid(target)) {
      header.target = args.targets.ignored(target) ? RowHeader::ignored : RowHeader::bad;
      return header;
    }
    header.target = static_cast<int>(target);
    header.logit = widen(static_cast<const T*>(args.logits)[row * args.stride + target]);
    header.weight = args.targets.weight(row, target);
    header.upstream = args.upstream_of(row);
    return header;
  }

  __device__ RowLoss loss(const RowHeader& header, RowStatistics& s) const {
    const auto target = TargetLogit::make<squashed>(args.squash, header.target, header.logit);
    return row_loss<T, extras>(args, s, target, header.weight);
  }

  __device__ void record(std::int64_t row, const RowHeader& header, RowStatistics s, int lane) const {
    if (lane != 0) return;
    if (header.target < 0) return write_skipped_row(args, row, header.target == RowHeader::ignored ? 0.0f : nanf(""));
    const RowLoss of_row = loss(header, s);
    write_row<extras>(args, row, s, of_row);
  }

  __device__ RowGradient result(const RowHeader& header, RowStatistics s) const {
    return RowGradient(args, loss(header, s), header.upstream);
  }
  __device__ static bool is_plain(const RowGradient& row) { return row.plain(); }
  template <bool plain>
  __device__ void gradient(const RowGradient& row, float (&values)[packed_size<T>]) const {
    row.apply<T, squashed, plain>(args.squash, values);
  }
  __device__ float gradient_at_target(const RowGradient& row) const { return row.at_target(args.label_smoothing); }

  __device__ void write_zeros(std::int64_t row, int thread, int threads) const {
    cuda::write_zeros(out(row), thread, threads, args.columns);
  }
  __device__ void write_padding(std::int64_t row, int thread, int threads) const {
    const int packs = (args.vocab + packed_size<T> - 1) / packed_size<T>;
    if (args.columns > packs * packed_size<T>) cuda::write_zeros(out(row), packs + thread, threads, args.columns);
  }
};

template <class T, bool squashed, bool extras>
bool launch(const Context& context, const CrossEntropyArguments& args) {
  return launch_stream(context, CrossEntropyTask<T, squashed, extras>(args),
                       StreamedRows{args.logits, args.stride, args.rows, args.vocab}, args.grad != nullptr);
}

}  // namespace

bool stream_cross_entropy(const Context& context, DType dtype, const CrossEntropyArguments& args, bool extras) {
  if (!streams_rows(context, args.vocab, size_of(dtype))) return false;
  bool launched = false;
  dispatch(dtype, "logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto function = args.squash.active() ? (extras ? launch<T, true, true> : launch<T, true, false>)
                                               : (extras ? launch<T, false, true> : launch<T, false, false>);
    launched = function(context, args);
  });
  return launched;
}

}  // namespace greyhound::cuda
