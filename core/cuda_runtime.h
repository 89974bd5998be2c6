// The part of the CUDA runtime that core uses, without CUDA's headers. Implemented in cuda/, and in
// no_cuda/ for builds without the toolkit. None of them changes the caller's current device. Internal.
#pragma once

#include <greyhound/core/device_info.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace greyhound::cuda {

int device_count() noexcept;
std::string unavailable_reason();
void require_usable(int device);  // throws what the driver says against it
void synchronize(int device, void* stream);
void* allocate(int device, std::size_t bytes);
void deallocate(int device, void* pointer) noexcept;
std::int64_t free_memory(int device);
void copy(int device, void* stream, void* to, const void* from, std::size_t bytes);
void fill(int device, void* stream, void* to, int value, std::size_t bytes);

void* allocate_host(int device, std::size_t bytes);  // page-locked
void deallocate_host(int device, void* pointer) noexcept;
void* make_stream(int device);  // independent of the default stream
void destroy_stream(int device, void* stream) noexcept;
void* make_event(int device);  // with timing; waiting for it sleeps
void destroy_event(int device, void* event) noexcept;
void record_event(int device, void* event, void* stream);
void wait_for_event(int device, void* stream, void* event);
void synchronize_event(int device, void* event);
double seconds_between(int device, void* earlier, void* later);
void* capture_graph(int device, void* stream, const std::function<void()>& enqueue);  // what it enqueues there
void launch_graph(int device, void* stream, void* graph);
void destroy_graph(int device, void* graph) noexcept;
CudaDeviceInfo device_info(int device);
CudaVersions versions();  // without driver_release

}  // namespace greyhound::cuda
