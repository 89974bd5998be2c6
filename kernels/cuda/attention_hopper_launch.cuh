// Starts attention's kernels for Hopper. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/attention_hopper.cuh>

#include <cuda_runtime.h>

namespace greyhound::cuda::hopper {

// The driver's cuTensorMapEncodeTiled; null where the driver has none.
inline auto tensor_map_encoder() {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return encode;
}

// Boxes of 64 columns and 64 tokens of a tensor [batch, tokens, heads, size], rows `row_stride` elements apart. False
// where the driver does not take it.
inline bool describe_heads(CUtensorMap& map, const bf16* data, std::int64_t row_stride, int batch, int tokens,
                           int heads, int size) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) return false;
  const auto extent = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t sizes[4] = {extent(size), extent(heads), extent(tokens), extent(batch)};
  const cuuint64_t strides[3] = {extent(size * 2), extent(row_stride * 2), extent(row_stride * 2 * tokens)};
  const cuuint32_t box[4] = {part_columns, 1, group_rows, 1}, steps[4] = {1, 1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<bf16*>(data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Maps of what the task points to; those of backward's tensors where it has them.
inline bool describe_task(AttentionMaps& maps, const AttentionTask<bf16>& task) {
  const int batch = task.all_heads / task.heads;
  const auto describe = [&](CUtensorMap& map, const bf16* data, std::int64_t stride, int heads) {
    return data == nullptr || describe_heads(map, data, stride, batch, task.tokens, heads, task.size);
  };
  return describe(maps.qkv, task.qkv, task.qkv_stride, 3 * task.heads) &&
         describe(maps.out, task.out, task.out_stride, task.heads) &&
         describe(maps.grad_out, task.grad_out, task.grad_out_stride, task.heads) &&
         describe(maps.grad_qkv, task.grad_qkv, task.grad_qkv_stride, 3 * task.heads);
}

}  // namespace greyhound::cuda::hopper
