// Launches of row_stream.cuh. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/row_stream.cuh>

#include <algorithm>

namespace greyhound::cuda {

// blockDim.x is stream_block_threads; dynamic shared memory as the plan says.
template <class Task>
__global__ void __launch_bounds__(stream_block_threads)
    row_stream_kernel(const __grid_constant__ Task task, const StreamedRows rows, const StreamShape shape) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char stream_memory[];
  RowStream<Task> stream(task, rows, shape, stream_memory);
  stream.initialize();
  const unsigned warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (warp < stream_warps) {
    stream.consume();
  } else if (warp == stream_warps) {
    if (stream.records()) stream.record_rows();
  } else if (lane == 0) {
    if (warp == stream_warps + 1) {
      stream.copy_chunks();
    } else {
      stream.read_headers();
    }
  }
  __syncwarp();
  hopper::cluster_barrier();  // no block ends while another may write to its memory
#endif
}

inline constexpr std::int64_t min_streamed_bytes = 16384;  // of a row; shorter ones gain nothing

// Whether rows of this length are worth streaming on the context's device.
inline bool streams_rows(const Context& context, std::int64_t vocab, std::size_t element_size) {
  return cache_of(context).compute_capability >= 90 &&
         vocab * static_cast<std::int64_t>(element_size) >= min_streamed_bytes;
}

// `writes`: as task.writes() will say. False, with nothing enqueued, where the row is too long for a cluster, or the
// kernel was compiled for older devices.
template <class Task>
bool launch_stream(const Context& context, const Task& task, const StreamedRows& rows, bool writes) {
  const auto kernel = row_stream_kernel<Task>;
  Cache& cache = cache_of(context);
  const StreamPlan plan = plan_stream((rows.vocab + packed_size<typename Task::T> - 1) / packed_size<typename Task::T>,
                                      cache.max_block_shared_bytes, writes);
  if (plan.cluster == 0) return false;

  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = plan.cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(plan.cluster);
  config.blockDim = dim3(stream_block_threads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream_of(context.stream());
  config.attrs = &cluster;
  config.numAttrs = 1;

  // How many clusters are on the device at once is asked once for each kernel and plan.
  int& resident = cache.resident_clusters[{reinterpret_cast<const void*>(kernel), plan.cluster, plan.shared_bytes}];
  if (resident == 0) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    resident = -1;
    if (attributes.ptxVersion >= 90) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(plan.shared_bytes)),
            "cudaFuncSetAttribute");
      check(cudaOccupancyMaxActiveClusters(&resident, kernel, &config), "cudaOccupancyMaxActiveClusters");
      if (resident == 0) resident = -1;
    }
  }
  if (resident < 0) return false;
  config.gridDim = dim3(plan.cluster * static_cast<unsigned>(std::min<std::int64_t>(resident, rows.rows)));
  check(cudaLaunchKernelEx(&config, kernel, task, rows, plan.shape), "row_stream");
  return true;
}

}  // namespace greyhound::cuda
