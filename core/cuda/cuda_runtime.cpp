#include <greyhound/core/cuda_runtime.h>

#include <greyhound/core/arena.h>
#include <greyhound/core/cuda/device_scope.h>

namespace greyhound::cuda {

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // a missing driver is an answer here, not a failure
    return 0;
  }
  return count;
}

std::string unavailable_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    const int driver = versions().driver;
    if (driver == 0) return "no NVIDIA driver found";
    return concat("the NVIDIA driver supports CUDA ", cuda_version_text(driver), " and this build needs ",
                  cuda_version_text(CUDART_VERSION),
                  ": install a newer driver, or build Greyhound with an older CUDA toolkit");
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count == 0 ? "the CUDA driver sees no GPU" : "";
}

void require_usable(int device) {
  const DeviceScope scope(device);
  check(cudaFree(nullptr), "starting the device");  // the context is made at the first real call
}

void synchronize(int device, void* stream) {
  const DeviceScope scope(device);
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void* allocate(int device, std::size_t bytes) {
  const DeviceScope scope(device);
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_runtime("out of memory on cuda:", device, ": ", format_bytes(static_cast<double>(bytes)), " asked for, ",
                  format_bytes(static_cast<double>(free_memory(device))), " free");
  }
  check(status, "cudaMalloc");
  return pointer;
}

void deallocate(int device, void* pointer) noexcept {
  // At process exit the driver may be gone already; there is nobody left to tell.
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return;
  (void)cudaFree(pointer);
  (void)cudaSetDevice(before);
}

std::int64_t free_memory(int device) {
  const DeviceScope scope(device);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

void copy(int device, void* stream, void* to, const void* from, std::size_t bytes) {
  const DeviceScope scope(device);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}

void fill(int device, void* stream, void* to, int value, std::size_t bytes) {
  const DeviceScope scope(device);
  check(cudaMemsetAsync(to, value, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void* allocate_host(int device, std::size_t bytes) {
  const DeviceScope scope(device);
  void* pointer = nullptr;
  const cudaError_t status = cudaMallocHost(&pointer, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_runtime("out of page-locked memory on the host: ", format_bytes(static_cast<double>(bytes)), " asked for");
  }
  check(status, "cudaMallocHost");
  return pointer;
}

void deallocate_host(int device, void* pointer) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return;
  (void)cudaFreeHost(pointer);
  (void)cudaSetDevice(before);
}

void* make_stream(int device) {
  const DeviceScope scope(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void destroy_stream(int, void* stream) noexcept { (void)cudaStreamDestroy(stream_of(stream)); }

void* make_event(int device) {
  const DeviceScope scope(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "cudaEventCreateWithFlags");
  return event;
}

void destroy_event(int, void* event) noexcept { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

void record_event(int device, void* event, void* stream) {
  const DeviceScope scope(device);
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)), "cudaEventRecord");
}

void wait_for_event(int device, void* stream, void* event) {
  const DeviceScope scope(device);
  check(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
}

void synchronize_event(int device, void* event) {
  const DeviceScope scope(device);
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
}

double seconds_between(int device, void* earlier, void* later) {
  const DeviceScope scope(device);
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier), static_cast<cudaEvent_t>(later)),
        "cudaEventElapsedTime");
  return 1e-3 * milliseconds;
}

void* capture_graph(int device, void* stream, const std::function<void()>& enqueue) {
  const DeviceScope scope(device);
  const cudaStream_t captured = stream_of(stream);
  cudaGraph_t graph = nullptr;
  const auto destroy = [&] {
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  };
  // Other host threads go on allocating and waiting: a checkpoint is being written, a communicator watches its ranks.
  check(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    enqueue();
  } catch (...) {
    (void)cudaStreamEndCapture(captured, &graph);
    (void)cudaGetLastError();  // what ended the capture is on its way up
    destroy();
    throw;
  }
  cudaGraphExec_t executable = nullptr;
  cudaError_t status = cudaStreamEndCapture(captured, &graph);
  const char* what = "cudaStreamEndCapture";
  if (status == cudaSuccess) {
    status = cudaGraphInstantiate(&executable, graph, 0);
    what = "cudaGraphInstantiate";
  }
  destroy();
  check(status, what);
  return executable;
}

void launch_graph(int device, void* stream, void* graph) {
  const DeviceScope scope(device);
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}

void destroy_graph(int device, void* graph) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return;
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
  (void)cudaSetDevice(before);
}

CudaDeviceInfo device_info(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) throw_runtime("CUDA device ", device, " of ", count);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  CudaDeviceInfo info;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  return info;
}

CudaVersions versions() {
  CudaVersions versions;
  versions.built = CUDART_VERSION;
  // A machine without a driver is an answer here, not a failure: then both leave 0.
  if (cudaRuntimeGetVersion(&versions.runtime) != cudaSuccess) versions.runtime = 0;
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) versions.driver = 0;
  (void)cudaGetLastError();
  return versions;
}

}  // namespace greyhound::cuda
