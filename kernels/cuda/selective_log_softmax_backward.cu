// The gradient of selective log-softmax: two reads of the logits, one write. Formulas: kernels/selective_log_softmax.h.
#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/selective_log_softmax.h>
#include <greyhound/kernels/cuda/class_indices.cuh>
#include <greyhound/kernels/cuda/row_statistics.cuh>

namespace greyhound::cuda {

namespace {

template <class G>
struct BackwardArguments {
  const void* logits;
  std::int64_t stride;
  void* grad;
  std::int64_t grad_stride;
  int vocab, columns;
  IndexArguments index;
  ValuesBeside<G> grad_out;
  const float* lse;
  const float* grad_scale;
  float logit_scale;
  Squash squash;
};

// Sums of exp(z - lse) over a row, and of grad_out over its valid indices.
struct RowSums {
  double others;            // the terms of all columns but the peak
  double peak;              // the largest term of a valid index
  double total;             // sum of grad_out
  std::int64_t peak_class;  // -1: none

  __device__ void add_class(std::int64_t index, double term) {
    if (term > peak) {
      others += peak;
      peak = term;
      peak_class = index;
    } else {
      others += term;  // a NaN too
    }
  }
};

// Calls function(i, index) for the valid indices in columns [first, first + size).
template <int size, class Function>
__device__ void each_index_in(const IndexArguments& indices, std::int64_t row, int first, Function function) {
  for (std::int64_t k = 0; k < indices.per_row; ++k) {
    const std::int64_t index = indices.at(row, k);
    if (indices.valid(index) && index >= first && index < first + size)
      function(static_cast<int>(index - first), index);
  }
}

template <class T, class G, bool squashed>
__device__ RowSums row_sums(const BackwardArguments<G>& args, const T* logits, std::int64_t row, float lse) {
  constexpr int size = packed_size<T>;
  const bool aligned = is_packed_aligned(logits);
  const int packs = (args.vocab + size - 1) / size;
  float rest = 0;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    float values[size];
    unpack(load_packed(logits, pack * size, args.columns, aligned), values);
    if ((pack + 1) * size > args.vocab) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if (pack * size + i >= args.vocab) values[i] = -INFINITY;
      }
    }
    each_index_in<size>(args.index, row, pack * size, [&](int selected, std::int64_t) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if (i == selected) values[i] = -INFINITY;
      }
    });
#pragma unroll
    for (int i = 0; i < size; ++i) rest += row_exp<T>(args.squash.apply<squashed>(values[i]) - lse);
  }
  RowSums sums{rest, 0, 0, -1};
  for (std::int64_t k = threadIdx.x; k < args.index.per_row; k += blockDim.x) {
    const std::int64_t index = args.index.at(row, k);
    if (!args.index.valid(index)) continue;
    sums.total += args.grad_out.at(row, k);
    bool seen = false;  // an index that comes again has its term already
    for (std::int64_t before = 0; before < k && !seen; ++before) seen = args.index.at(row, before) == index;
    if (!seen) sums.add_class(index, row_exp<T>(args.squash.apply<squashed>(widen(logits[index])) - lse));
  }
  __shared__ RowSums shared[max_warps];
  return block_reduce(sums, RowSums{0, 0, 0, -1}, shared, [](RowSums& a, const RowSums& b) {
    a.others += b.others;
    a.total += b.total;
    a.add_class(b.peak_class, b.peak);
  });
}

// dz of a class with probability p, the other columns' being `rest`.
template <class G>
__device__ double class_gradient(const BackwardArguments<G>& args, std::int64_t row, std::int64_t index, double p,
                                 double rest) {
  double own = 0, other = 0;
  for (std::int64_t k = 0; k < args.index.per_row; ++k) {
    const std::int64_t other_index = args.index.at(row, k);
    if (args.index.valid(other_index)) (other_index == index ? own : other) += args.grad_out.at(row, k);
  }
  return own * rest - other * p;
}

// One block per row; sums follow a fixed tree. Each thread owns the same packs of columns in both passes, and the
// reduction between them is a barrier, so that the gradient may replace the logits.
template <class T, class G, bool squashed>
__global__ void __launch_bounds__(1024) selective_backward_kernel(const BackwardArguments<G> args) {
  constexpr int size = packed_size<T>;
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.stride;
  T* grad = static_cast<T*>(args.grad) + row * args.grad_stride;
  const bool aligned = is_packed_aligned(logits), grad_aligned = is_packed_aligned(grad);
  const int packs = (args.columns + size - 1) / size;
  if (!args.index.any_valid(row)) {
    write_zeros(grad, threadIdx.x, blockDim.x, args.columns);
    return;
  }
  const float lse = args.lse[row];
  const RowSums sums = row_sums<T, G, squashed>(args, logits, row, lse);
  const double sum = sums.others + sums.peak;
  const double scale = (args.grad_scale != nullptr ? *args.grad_scale : 1.0) * args.logit_scale;
  // Adding 0 turns -0 into +0: a grad_out of 0 gives zeros without a sign.
  const float factor = static_cast<float>(-scale * sums.total / sum) + 0.0f;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    const int first = pack * size;
    float z[size], slopes[size], gradients[size];
    unpack(load_packed(logits, first, args.columns, aligned), z);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      z[i] = args.squash.apply<squashed>(z[i], &slopes[i]);
      gradients[i] = z[i] == -INFINITY ? 0.0f : factor * row_exp<T>(z[i] - lse);
    }
    each_index_in<size>(args.index, row, first, [&](int selected, std::int64_t index) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if (i != selected) continue;
        const double p = row_exp<T>(z[i] - lse) / sum;
        const double rest = index == sums.peak_class ? sums.others / sum : 1 - p;
        gradients[i] = static_cast<float>(scale * class_gradient(args, row, index, p, rest)) + 0.0f;
      }
    });
#pragma unroll
    for (int i = 0; i < size; ++i) gradients[i] = first + i < args.vocab ? gradients[i] * slopes[i] : 0.0f;
    store_packed(grad, first, args.columns, grad_aligned, gradients);
  }
}

template <class T, class G>
void launch_backward(const Context& context, const SelectiveLogSoftmaxBackward& args) {
  BackwardArguments<G> backward{};
  backward.logits = args.logits.data;
  backward.stride = args.logits.row_stride;
  backward.grad = args.grad.data;
  backward.grad_stride = args.grad.row_stride;
  backward.vocab = static_cast<int>(args.vocab);
  backward.columns = static_cast<int>(args.logits.columns());
  backward.index = index_arguments(args.index, args.vocab, args.ignore_index);
  backward.grad_out = values_beside<G>(args.grad_out);
  backward.lse = args.lse.as<float>();
  backward.grad_scale = args.grad_scale.as<float>();
  backward.logit_scale = args.logit_scale;
  backward.squash = {args.logit_scale, args.softcap};
  const RowLaunch launch =
      row_launch(args.logits.columns(), sizeof(T), cache_of(context).max_block_shared_bytes, false);
  const auto kernel =
      backward.squash.active() ? selective_backward_kernel<T, G, true> : selective_backward_kernel<T, G, false>;
  kernel<<<static_cast<unsigned>(args.logits.rows()), launch.threads, 0, stream_of(context.stream())>>>(backward);
  check_launch("selective_log_softmax_backward_rows");
}

}  // namespace

void selective_log_softmax_backward_rows(const Context& context, const SelectiveLogSoftmaxBackward& args) {
  require_row_sizes(args.logits.rows(), args.logits.columns(), "selective_log_softmax_backward");
  if (args.logits.rows() == 0) return;
  const DeviceScope device(context);
  dispatch(args.logits.dtype, "logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.grad_out.dtype == DType::fp32) {
      launch_backward<T, float>(context, args);
    } else {
      launch_backward<T, T>(context, args);
    }
  });
}

}  // namespace greyhound::cuda
