// Starts attention's kernels for Hopper. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/cuda/attention_hopper.cuh>
#include <greyhound/kernels/cuda/hopper_launch.cuh>

#include <cuda_runtime.h>

namespace greyhound::cuda::hopper {

// Row values as a tensor of fp32.
inline Shape row_values_shape(std::int64_t batch, std::int64_t heads, std::int64_t tokens) {
  return {batch, heads, (tokens + RowValues::rows - 1) / RowValues::rows, std::int64_t{sizeof(RowValues) / 4}};
}

// Boxes of 64 columns and 64 tokens of a tensor [batch, tokens, heads, size], rows `row_stride` elements apart. False
// where the driver does not take it.
inline bool describe_heads(CUtensorMap& map, const bf16* data, std::int64_t row_stride, int batch, int tokens,
                           int heads, int size) {
  const auto extent = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  return describe_boxes<4>(map, data, {extent(size), extent(heads), extent(tokens), extent(batch)},
                           {extent(size * 2), extent(row_stride * 2), extent(row_stride * 2 * tokens)},
                           {part_columns, 1, group_rows, 1});
}

// Maps of the tensors that a forward task's kernel copies, or those of a backward task, which has a grad_out. Rows and
// heads are whole pieces of 16 bytes.
inline bool describe_task(AttentionMaps& maps, const AttentionTask<bf16>& task) {
  const int batch = task.all_heads / task.heads;
  const auto describe = [&](CUtensorMap& map, const bf16* data, std::int64_t stride, int heads) {
    return describe_heads(map, data, stride, batch, task.tokens, heads, task.size);
  };
  if (!describe(maps.qkv, task.qkv, task.qkv_stride, 3 * task.heads)) return false;
  if (task.grad_out == nullptr) return describe(maps.out, task.out, task.out_stride, task.heads);
  return describe(maps.grad_out, task.grad_out, task.grad_out_stride, task.heads) &&
         describe(maps.grad_qkv, task.grad_qkv, task.grad_qkv_stride, 3 * task.heads);
}

// One block for each Tiling::Rows rows of each head; `values` are the kernel's own arguments.
template <class Tiling, class Kernel, class... Values>
void launch(const Context& context, Kernel* kernel, int shared_bytes, const AttentionTask<bf16>& task,
            const AttentionMaps& maps, const char* what, Values... values) {
  const int blocks_per_head = (task.tokens + Tiling::Rows - 1) / Tiling::Rows;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const unsigned blocks = static_cast<unsigned>(blocks_per_head) * static_cast<unsigned>(task.all_heads);
  kernel<<<blocks, Tiling::Threads, static_cast<std::size_t>(shared_bytes), stream_of(context.stream())>>>(
      task, maps, values..., blocks_per_head);
  check_launch(what);
}

}  // namespace greyhound::cuda::hopper
