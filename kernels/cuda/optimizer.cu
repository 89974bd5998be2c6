// Formulas: kernels/optimizer.h.
#include <greyhound/kernels/optimizer.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

#include <algorithm>

namespace greyhound::cuda {

namespace {

constexpr int threads = 256;
constexpr int size = packed_size<float>;

// Blocks that add squares; the cut follows from n alone.
constexpr std::int64_t most_norm_blocks = 1056;
std::int64_t norm_blocks(std::int64_t n) {
  return std::min<std::int64_t>(most_norm_blocks, (n + 8 * 1024 - 1) / (8 * 1024));
}

// Elements [4 pack, 4 pack + 4) of n; what lies behind the end reads as 0.
template <bool aligned>
__device__ inline void read_four(const float* data, std::int64_t pack, std::int64_t n, float (&values)[size]) {
  const std::int64_t first = pack * size;
  if (aligned && first + size <= n) {
    unpack(Packed<float>{*reinterpret_cast<const uint4*>(data + first)}, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < size; ++i) values[i] = first + i < n ? data[first + i] : 0.0f;
}

__device__ inline void add_double(double& a, const double& b) { a += b; }

// Reads the gradients once. The elements of a thread, and the order of its sum, depend on n alone.
template <bool aligned>
__global__ void __launch_bounds__(threads) sum_squares_kernel(const float* grads, std::int64_t n, double* partials) {
  constexpr int turn = 4;  // packs of one thread on their way at once
  const std::int64_t packs = (n + size - 1) / size, step = static_cast<std::int64_t>(gridDim.x) * threads;
  double sum = 0;
  for (std::int64_t pack = blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x; pack < packs;
       pack += turn * step) {
    float values[turn][size];
#pragma unroll
    for (int k = 0; k < turn; ++k) read_four<aligned>(grads, pack + k * step, n, values[k]);
#pragma unroll
    for (int k = 0; k < turn; ++k) {
#pragma unroll
      for (float value : values[k]) sum += double{value} * double{value};
    }
  }
  __shared__ double shared[max_warps];
  sum = block_reduce(sum, 0.0, shared, add_double);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads) norm_kernel(const double* partials, std::int64_t count, float* norm) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads) sum += partials[i];
  __shared__ double shared[max_warps];
  sum = block_reduce(sum, 0.0, shared, add_double);
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

// Decay ranges travel as an argument of the kernel; more of them than fit take several launches.
constexpr int most_ranges = 240;
struct RangeTable {
  std::int64_t begin, end;  // parameters of this launch
  int count;
  std::int64_t ends[most_ranges];
  float decay[most_ranges];
};

struct AdamWArguments {
  float *weights, *m, *v;
  bf16* working;
  const float *grads, *norm;
  const std::int64_t* steps_taken;
  float lr, beta1, beta2, eps, grad_clip;
};

// What a step needs besides the parameters, made in fp64: 1 - beta^t cancels for beta near 1.
struct StepTerms {
  float grad_scale, one_minus_beta1, one_minus_beta2, inverse_correction1, inverse_correction2;
};

__device__ inline StepTerms step_terms(const AdamWArguments& args, float norm) {
  const double t = static_cast<double>(*args.steps_taken + 1);
  StepTerms terms;
  terms.grad_scale = args.grad_clip > 0 && norm > args.grad_clip ? args.grad_clip / norm : 1.0f;
  terms.one_minus_beta1 = static_cast<float>(1.0 - args.beta1);
  terms.one_minus_beta2 = static_cast<float>(1.0 - args.beta2);
  terms.inverse_correction1 = static_cast<float>(1.0 / (1.0 - pow(double{args.beta1}, t)));
  terms.inverse_correction2 = static_cast<float>(1.0 / (1.0 - pow(double{args.beta2}, t)));
  return terms;
}

struct Parameter {
  float weight, m, v;
};

__device__ inline void update(const AdamWArguments& args, const StepTerms& terms, float grad, float decay,
                              Parameter& p) {
  const float g = grad * terms.grad_scale;
  p.m = args.beta1 * p.m + terms.one_minus_beta1 * g;
  p.v = args.beta2 * p.v + terms.one_minus_beta2 * (g * g);
  const float denominator = sqrtf(p.v * terms.inverse_correction2) + args.eps;
  p.weight -= args.lr * (p.m * terms.inverse_correction1 / denominator + decay * p.weight);
}

constexpr int turn = 2;                               // packs of one thread on their way at once
constexpr std::int64_t tile = threads * turn * size;  // parameters of one turn of a block

__device__ inline void write_four(float* data, std::int64_t first, const float (&values)[size]) {
  *reinterpret_cast<uint4*>(data + first) = pack<float>(values).bits;
}

// Reads weights, gradients, m and v once (16 bytes a parameter) and writes weights, m, v and the rounded copy once
// (14). A norm that is not finite leaves everything as it is.
template <bool aligned>
__global__ void __launch_bounds__(threads) adamw_kernel(const AdamWArguments args, const RangeTable ranges) {
  __shared__ StepTerms shared_terms;
  const float norm = *args.norm;
  if (!isfinite(norm)) return;
  if (threadIdx.x == 0) shared_terms = step_terms(args, norm);
  __syncthreads();
  const StepTerms terms = shared_terms;
  int tile_range = 0;  // of the tile's first parameter; tiles are visited in order
  const std::int64_t first_tile = ranges.begin / tile, tiles = (ranges.end + tile - 1) / tile;
  for (std::int64_t at = first_tile + blockIdx.x; at < tiles; at += gridDim.x) {
    const std::int64_t base = at * tile;
    while (tile_range < ranges.count - 1 && ranges.ends[tile_range] <= base) ++tile_range;
    std::int64_t first[turn];
    float weight[turn][size], grad[turn][size], m[turn][size], v[turn][size];
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      first[k] = base + (k * threads + static_cast<int>(threadIdx.x)) * size;
      if (first[k] >= ranges.end) continue;
      read_four<aligned>(args.weights, first[k] / size, ranges.end, weight[k]);
      read_four<aligned>(args.grads, first[k] / size, ranges.end, grad[k]);
      read_four<aligned>(args.m, first[k] / size, ranges.end, m[k]);
      read_four<aligned>(args.v, first[k] / size, ranges.end, v[k]);
    }
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      if (first[k] >= ranges.end) continue;
      int range = tile_range;
#pragma unroll
      for (int i = 0; i < size; ++i) {
        while (range < ranges.count - 1 && ranges.ends[range] <= first[k] + i) ++range;
        Parameter p{weight[k][i], m[k][i], v[k][i]};
        update(args, terms, grad[k][i], ranges.decay[range], p);
        weight[k][i] = p.weight;
        m[k][i] = p.m;
        v[k][i] = p.v;
      }
      if (aligned && first[k] >= ranges.begin && first[k] + size <= ranges.end) {
        write_four(args.weights, first[k], weight[k]);
        write_four(args.m, first[k], m[k]);
        write_four(args.v, first[k], v[k]);
        if (args.working != nullptr) {
          *reinterpret_cast<uint2*>(args.working + first[k]) =
              make_uint2(pack_word(weight[k], bf16{}), pack_word(weight[k] + 2, bf16{}));
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const std::int64_t element = first[k] + i;
        if (element < ranges.begin || element >= ranges.end) continue;
        args.weights[element] = weight[k][i];
        args.m[element] = m[k][i];
        args.v[element] = v[k][i];
        if (args.working != nullptr) args.working[element] = narrow<bf16>(weight[k][i]);
      }
    }
  }
}

__global__ void count_step_kernel(const float* norm, std::int64_t* steps_taken) {
  if (isfinite(*norm)) ++*steps_taken;
}

bool is_aligned(const void* data, std::uintptr_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

// Up to most_ranges ranges from number `first` on.
RangeTable range_table(const AdamW& args, std::int64_t first) {
  RangeTable table{};
  table.count = static_cast<int>(std::min<std::int64_t>(most_ranges, args.range_count - first));
  table.begin = args.ranges[first].begin;
  table.end = args.ranges[first + table.count - 1].end;
  for (int i = 0; i < table.count; ++i) {
    table.ends[i] = args.ranges[first + i].end;
    table.decay[i] = args.ranges[first + i].weight_decay;
  }
  return table;
}

}  // namespace

std::size_t gradient_norm_workspace_bytes(const Context&, std::int64_t n) {
  return Workspace::size(DType::fp64, {norm_blocks(n)});
}

void gradient_norm(const Context& context, const GradientNorm& args, Workspace& workspace) {
  const DeviceScope device(context);
  const std::int64_t n = args.grads.elements(), blocks = norm_blocks(n);
  const Workspace::Scope scope(workspace);
  double* partials = workspace.take(DType::fp64, {blocks}).as<double>();
  const float* grads = args.grads.as<float>();
  const cudaStream_t stream = stream_of(context.stream());
  if (n > 0) {
    const auto kernel = is_aligned(grads, 16) ? sum_squares_kernel<true> : sum_squares_kernel<false>;
    kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(grads, n, partials);
    check_launch("gradient_norm");
  }
  norm_kernel<<<1, threads, 0, stream>>>(partials, blocks, args.norm.as<float>());
  check_launch("gradient_norm: partial sums");
}

void adamw(const Context& context, const AdamW& args) {
  const DeviceScope device(context);
  AdamWArguments values{};
  values.weights = args.weights.as<float>();
  values.m = args.m.as<float>();
  values.v = args.v.as<float>();
  values.working = args.working_weights ? args.working_weights.as<bf16>() : nullptr;
  values.grads = args.grads.as<float>();
  values.norm = args.norm.as<float>();
  values.steps_taken = args.steps_taken.as<std::int64_t>();
  values.lr = args.lr;
  values.beta1 = args.beta1;
  values.beta2 = args.beta2;
  values.eps = args.eps;
  values.grad_clip = args.grad_clip;
  const bool aligned = is_aligned(values.weights, 16) && is_aligned(values.m, 16) && is_aligned(values.v, 16) &&
                       is_aligned(values.grads, 16) && is_aligned(values.working, 8);
  const cudaStream_t stream = stream_of(context.stream());
  for (std::int64_t first = 0; first < args.range_count; first += most_ranges) {
    const RangeTable table = range_table(args, first);
    if (table.begin == table.end) continue;
    const std::int64_t tiles = (table.end + tile - 1) / tile - table.begin / tile;
    const auto kernel = aligned ? adamw_kernel<true> : adamw_kernel<false>;
    kernel<<<static_cast<unsigned>(std::min<std::int64_t>(tiles, 1056)), threads, 0, stream>>>(values, table);
    check_launch("adamw");
  }
  count_step_kernel<<<1, 1, 0, stream>>>(values.norm, args.steps_taken.as<std::int64_t>());
  check_launch("adamw: steps_taken");
}

}  // namespace greyhound::cuda
