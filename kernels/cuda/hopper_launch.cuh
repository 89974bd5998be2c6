// What the host does for kernels with Hopper's own instructions. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/core/dtype.h>
#include <greyhound/kernels/cuda/cache.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace greyhound::cuda::hopper {

// Which devices these kernels are for; whether the program has their code is another question.
inline bool is_hopper(const Context& context) { return cache_of(context).compute_capability == 90; }

// Whether `kernel` was compiled with Hopper's own instructions. Elsewhere it is empty, without shared memory. To be
// asked with a Hopper device current; the answer is the same for all of them.
template <class Kernel>
bool is_compiled(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  return attributes.sharedSizeBytes > 0;
}

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

// The map of a tensor of bf16 in boxes, 64 columns wide, swizzled as products take them; what lies outside of it is
// zeros. Extents from the innermost on; strides in bytes, of all dimensions but that. False where the driver does not
// take it.
template <int rank>
bool describe_boxes(CUtensorMap& map, const bf16* data, const cuuint64_t (&sizes)[rank],
                    const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank]) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) return false;
  cuuint32_t steps[rank];
  for (cuuint32_t& step : steps) step = 1;
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<bf16*>(data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Boxes of 64 columns and `box_rows` rows of a matrix [rows, columns], whose rows are `row_stride` elements apart and
// start at 16 bytes. False where the driver does not take it.
inline bool describe_matrix(CUtensorMap& map, const bf16* data, std::int64_t rows, std::int64_t columns,
                            std::int64_t row_stride, int box_rows) {
  return describe_boxes<2>(map, data, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                           {static_cast<cuuint64_t>(row_stride * 2)}, {64, static_cast<cuuint32_t>(box_rows)});
}

}  // namespace greyhound::cuda::hopper
