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

}  // namespace greyhound::cuda
