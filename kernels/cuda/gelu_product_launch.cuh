// Starts the kernels of gelu_product.cuh. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/gelu_product.cuh>
#include <greyhound/kernels/cuda/hopper_launch.cuh>

#include <algorithm>

namespace greyhound::cuda::hopper {

// Operands whose rows begin at 16 bytes, `stride` elements apart.
struct GeluProductOperand {
  const bf16* data;
  std::int64_t stride;
};

// False, with nothing enqueued, where the driver does not describe the operands. `multiprocessors`: of the device.
template <class Tiling>
bool launch_gelu_product(cudaStream_t stream, int multiprocessors, const GeluProductTask& task,
                         const GeluProductOperand& a, const GeluProductOperand& w) {
  const std::int64_t w_rows = Tiling::Backward ? task.depth : task.columns;
  const std::int64_t w_columns = Tiling::Backward ? task.columns : task.depth;
  GeluProductMaps maps{};
  if (!describe_matrix(maps.a, a.data, task.rows, task.depth, a.stride, Tiling::a_box) ||
      !describe_matrix(maps.w, w.data, w_rows, w_columns, w.stride, Tiling::w_box)) {
    return false;
  }
  const auto kernel = gelu_product_kernel<Tiling>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tiling::shared_bytes),
        "cudaFuncSetAttribute");
  const std::int64_t tile_rows = (task.rows + Tiling::Rows - 1) / Tiling::Rows;
  const std::int64_t tiles = tile_rows * ((task.columns + Tiling::Columns - 1) / Tiling::Columns);
  const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, multiprocessors));
  kernel<<<blocks, Tiling::Threads, Tiling::shared_bytes, stream>>>(task, maps);
  check_launch("gelu_product");
  return true;
}

}  // namespace greyhound::cuda::hopper
