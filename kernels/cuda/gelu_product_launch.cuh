// Starts the kernels of gelu_product.cuh. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/gelu_product.cuh>
#include <greyhound/kernels/cuda/hopper_launch.cuh>

#include <algorithm>

namespace greyhound::cuda::hopper {

// Rows of GeluProductTask::partials.
template <class Tiling>
std::int64_t gelu_product_tile_rows(std::int64_t rows) {
  return (rows + Tiling::Rows - 1) / Tiling::Rows;
}

// Operands whose rows begin at 16 bytes, `stride` elements apart.
struct GeluProductOperand {
  const bf16* data;
  std::int64_t stride;
};

// False, with nothing enqueued, where the driver does not describe the operands. `processors`: of the device.
template <class Tiling>
bool launch_gelu_product(cudaStream_t stream, int processors, const GeluProductTask& task, const GeluProductOperand& a,
                         const GeluProductOperand& w) {
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
  const std::int64_t tile_rows = gelu_product_tile_rows<Tiling>(task.rows);
  const std::int64_t tiles =
      (tile_rows + Tiling::Cluster - 1) / Tiling::Cluster * ((task.columns + Tiling::Columns - 1) / Tiling::Columns);
  const std::int64_t clusters = std::min<std::int64_t>(tiles, std::max(1, processors / Tiling::Cluster));

  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Tiling::Cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters) * Tiling::Cluster);
  config.blockDim = dim3(Tiling::Threads);
  config.dynamicSmemBytes = Tiling::shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, task, maps), "gelu_product");
  return true;
}

}  // namespace greyhound::cuda::hopper
