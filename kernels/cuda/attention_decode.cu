// Attention of one new position: blocks take splits of the positions, and a second kernel adds their results in order.
#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/cuda/attention_launch.cuh>
#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

namespace greyhound::cuda {

namespace {

constexpr int decode_threads = 128;  // one position each
constexpr int decode_warps = decode_threads / warp_size;
constexpr int columns_per_lane = static_cast<int>(max_head_size) / warp_size;

std::int64_t splits_of(std::int64_t positions) { return (positions + decode_threads - 1) / decode_threads; }

template <class T>
struct DecodeTask {
  const T* qkv;
  T *key_cache, *value_cache, *out;
  float* partials;  // [batch * heads, splits, size + 2]: weighted values, their total weight, the maximum
  std::int64_t qkv_stride, key_stride, value_stride, out_stride, max_positions;
  int channels, heads, size, position;
  float scale;
};

template <class T>
__global__ void __launch_bounds__(decode_threads) decode_split_kernel(const __grid_constant__ DecodeTask<T> task) {
  __shared__ float query[max_head_size], weights[decode_threads], sums[decode_warps][max_head_size], reduced[max_warps];
  const int thread = threadIdx.x, lane = thread % warp_size, warp = thread / warp_size;
  const int batch = blockIdx.y / task.heads, head = blockIdx.y % task.heads, column = head * task.size;
  const int first = blockIdx.x * decode_threads, position = first + thread;
  const T* row = task.qkv + batch * task.qkv_stride + column;
  // The new position comes from qkv itself: nobody waits for its copy into the caches.
  const auto key_at = [&](int p) {
    return p == task.position ? row + task.channels
                              : task.key_cache + (batch * task.max_positions + p) * task.key_stride + column;
  };
  const auto value_at = [&](int p) {
    return p == task.position ? row + 2 * task.channels
                              : task.value_cache + (batch * task.max_positions + p) * task.value_stride + column;
  };
  if (thread < task.size) query[thread] = task.scale * widen(row[thread]);
  if (blockIdx.x == gridDim.x - 1 && thread < task.size) {
    const std::int64_t at = batch * task.max_positions + task.position;
    task.key_cache[at * task.key_stride + column + thread] = row[task.channels + thread];
    task.value_cache[at * task.value_stride + column + thread] = row[2 * task.channels + thread];
  }
  __syncthreads();

  float score = -INFINITY;
  if (position <= task.position) {
    const T* key = key_at(position);
    const bool aligned = is_packed_aligned(key);
    score = 0;
    for (int d = 0; d < task.size; d += packed_size<T>) {
      float values[packed_size<T>];
      unpack(load_packed(key, d, task.size, aligned), values);
#pragma unroll
      for (int i = 0; i < packed_size<T>; ++i) {
        if (d + i < task.size) score = fmaf(query[d + i], values[i], score);
      }
    }
  }
  const float maximum = block_reduce(score, -INFINITY, reduced, [](float& a, const float& b) { a = fmaxf(a, b); });
  const float weight = position <= task.position ? expf(score - (maximum == -INFINITY ? 0.0f : maximum)) : 0.0f;
  weights[thread] = weight;
  __syncthreads();  // also: everyone has read what the first reduction left in `reduced`
  const float total = block_reduce(weight, 0.0f, reduced, [](float& a, const float& b) { a += b; });

  float mine[columns_per_lane] = {};
  const int end = min(decode_threads, task.position + 1 - first);
  for (int j = warp; j < end; j += decode_warps) {
    const T* value = value_at(first + j);
#pragma unroll
    for (int i = 0; i < columns_per_lane; ++i) {
      const int d = i * warp_size + lane;
      if (d < task.size) mine[i] = fmaf(weights[j], widen(value[d]), mine[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < columns_per_lane; ++i) sums[warp][i * warp_size + lane] = mine[i];
  __syncthreads();
  if (thread < task.size) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < decode_warps; ++w) sum += sums[w][thread];
    float* partial = task.partials + (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * (task.size + 2);
    partial[thread] = sum;
    if (thread == 0) {
      partial[task.size] = total;
      partial[task.size + 1] = maximum;
    }
  }
}

// One block per head and batch row.
template <class T>
__global__ void __launch_bounds__(decode_threads)
    decode_combine_kernel(const __grid_constant__ DecodeTask<T> task, int splits) {
  const int thread = threadIdx.x, batch = blockIdx.x / task.heads, head = blockIdx.x % task.heads;
  if (thread >= task.size) return;
  const int length = task.size + 2;
  const float* partials = task.partials + static_cast<std::int64_t>(blockIdx.x) * splits * length;
  float maximum = -INFINITY;
  for (int s = 0; s < splits; ++s) maximum = fmaxf(maximum, partials[s * length + task.size + 1]);
  const float reference = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0, total = 0;
  for (int s = 0; s < splits; ++s) {
    const float factor = expf(partials[s * length + task.size + 1] - reference);
    sum = fmaf(factor, partials[s * length + thread], sum);
    total = fmaf(factor, partials[s * length + task.size], total);
  }
  task.out[batch * task.out_stride + head * task.size + thread] = narrow<T>(sum / total);
}

}  // namespace

std::size_t attention_decode_workspace_bytes(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                             std::int64_t heads) {
  return Workspace::size(DType::fp32, {batch * heads, splits_of(positions), channels / heads + 2});
}

void attention_decode(const Context& context, const AttentionDecode& args, Workspace& workspace) {
  const std::int64_t batch = args.out.rows(), channels = args.out.columns(), positions = args.key_cache.shape[1];
  require_head_sizes(batch, channels, args.heads, "attention_decode");
  require(positions < std::numeric_limits<std::int32_t>::max() - decode_threads, "attention_decode: a cache of ",
          positions, " positions is too long for CUDA");
  require(batch * args.heads <= 65535, "attention_decode: at most 65535 rows times heads on CUDA, got ", batch,
          " rows and ", args.heads, " heads");
  const DeviceScope device(context);
  const Workspace::Scope scope(workspace);
  const std::int64_t size = channels / args.heads, splits = splits_of(args.position + 1);
  float* partials = workspace.take(DType::fp32, {batch * args.heads, splits, size + 2}).template as<float>();
  dispatch(args.qkv.dtype, "attention_decode: qkv", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
      const DecodeTask<T> task{args.qkv.as<T>(),
                               args.key_cache.as<T>(),
                               args.value_cache.as<T>(),
                               args.out.as<T>(),
                               partials,
                               args.qkv.row_stride,
                               args.key_cache.row_stride,
                               args.value_cache.row_stride,
                               args.out.row_stride,
                               positions,
                               static_cast<int>(channels),
                               static_cast<int>(args.heads),
                               static_cast<int>(size),
                               static_cast<int>(args.position),
                               1.0f / std::sqrt(static_cast<float>(size))};
      const unsigned heads = static_cast<unsigned>(batch * args.heads);
      const cudaStream_t stream = stream_of(context.stream());
      decode_split_kernel<T><<<dim3(static_cast<unsigned>(splits), heads), decode_threads, 0, stream>>>(task);
      check_launch("attention_decode");
      decode_combine_kernel<T><<<heads, decode_threads, 0, stream>>>(task, static_cast<int>(splits));
      check_launch("attention_decode: splits");
    }
  });
}

}  // namespace greyhound::cuda
