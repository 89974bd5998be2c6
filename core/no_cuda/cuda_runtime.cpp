#include <greyhound/core/cuda_runtime.h>

#include <greyhound/core/error.h>

namespace greyhound::cuda {

namespace {

[[noreturn]] void unavailable() { throw_runtime(unavailable_reason()); }

}  // namespace

int device_count() noexcept { return 0; }
std::string unavailable_reason() {
  return "this build has no CUDA backend; configure with -DGREYHOUND_CUDA=ON and NVIDIA's CUDA toolkit";
}
void require_usable(int) { unavailable(); }
void synchronize(int, void*) { unavailable(); }
void* allocate(int, std::size_t) { unavailable(); }
void deallocate(int, void*) noexcept {}
std::int64_t free_memory(int) { unavailable(); }
void copy(int, void*, void*, const void*, std::size_t) { unavailable(); }
void fill(int, void*, void*, int, std::size_t) { unavailable(); }
void* allocate_host(int, std::size_t) { unavailable(); }
void deallocate_host(int, void*) noexcept {}
void* make_stream(int) { unavailable(); }
void destroy_stream(int, void*) noexcept {}
void* make_event(int) { unavailable(); }
void destroy_event(int, void*) noexcept {}
void record_event(int, void*, void*) { unavailable(); }
void wait_for_event(int, void*, void*) { unavailable(); }
void synchronize_event(int, void*) { unavailable(); }
double seconds_between(int, void*, void*) { unavailable(); }
void* capture_graph(int, void*, const std::function<void()>&) { unavailable(); }
void launch_graph(int, void*, void*) { unavailable(); }
void destroy_graph(int, void*) noexcept {}
CudaDeviceInfo device_info(int) { unavailable(); }
CudaVersions versions() { return {}; }

}  // namespace greyhound::cuda
