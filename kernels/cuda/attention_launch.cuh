// What the launches of attention's forward and backward share. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/cuda/attention_task.cuh>

#include <algorithm>
#include <cmath>
#include <limits>

namespace greyhound::cuda {

// The widest tile of every kernel.
inline constexpr std::int64_t max_head_size = 128;

inline void require_head_sizes(std::int64_t rows, std::int64_t channels, std::int64_t heads, const char* what) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() - 65536;
  require(channels / heads <= max_head_size, what, ": heads of at most ", max_head_size, " channels on CUDA, got ",
          channels / heads);
  require(rows * heads <= most && channels <= most / 3, what, ": at most ", most,
          " rows times heads on CUDA, and a third as many channels, got ", rows, " rows, ", heads, " heads, ", channels,
          " channels");
}

template <class T>
AttentionTask<T> attention_task(const ConstTensor& qkv, const ConstTensor& out, std::int64_t batch, std::int64_t heads,
                                const Dropout& dropout) {
  const std::int64_t rows = out.rows(), channels = out.columns();
  require_head_sizes(rows, channels, heads, "attention");
  AttentionTask<T> task;
  task.qkv = qkv.as<T>();
  task.qkv_stride = qkv.row_stride;
  task.out = const_cast<T*>(out.as<T>());
  task.out_stride = out.row_stride;
  task.tokens = static_cast<int>(rows / batch);
  task.channels = static_cast<int>(channels);
  task.heads = static_cast<int>(heads);
  task.size = static_cast<int>(channels / heads);
  task.all_heads = static_cast<int>(batch * heads);
  task.scale = 1.0f / std::sqrt(static_cast<float>(task.size));
  if (dropout.probability > 0) {
    // A word is kept where (word >> 8) * 2^-24 >= probability.
    const double least = std::ceil(static_cast<double>(dropout.probability) * 0x1p24);
    task.dropout = {dropout.key, dropout.first_row, static_cast<unsigned>(least) << 8,
                    1.0f / (1.0f - dropout.probability), dropout.origin};
  }
  // Queries, keys, values and the gradient of as many heads as half of a large L2 holds.
  constexpr std::int64_t section_bytes = std::int64_t{24} << 20;
  const std::int64_t head_bytes = 4 * static_cast<std::int64_t>(task.tokens) * task.size * sizeof(T);
  task.section = static_cast<int>(std::clamp<std::int64_t>(section_bytes / head_bytes, 1, task.all_heads));
  return task;
}

// Whether rows can be read and written in pieces of 16 bytes, each of one head, and tiles of up to 256 rows be
// addressed with 32 bits.
inline bool has_packed_heads(const ConstTensor& rows, std::int64_t size) {
  const std::int64_t elements = 16 / static_cast<std::int64_t>(size_of(rows.dtype));
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % elements == 0 &&
         size % elements == 0 && rows.row_stride < (std::int64_t{1} << 24);
}

// One block for each `rows_per_block` rows of each head.
template <class T>
void launch_attention(const Context& context, void (*kernel)(AttentionTask<T>, int), const AttentionTask<T>& task,
                      int rows_per_block, int threads, int shared_bytes, const char* what) {
  const int blocks_per_head = (task.tokens + rows_per_block - 1) / rows_per_block;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const unsigned blocks = static_cast<unsigned>(blocks_per_head) * static_cast<unsigned>(task.all_heads);
  kernel<<<blocks, threads, static_cast<std::size_t>(shared_bytes), stream_of(context.stream())>>>(task,
                                                                                                   blocks_per_head);
  check_launch(what);
}

std::size_t attention_decode_workspace_bytes(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                             std::int64_t heads);

}  // namespace greyhound::cuda
