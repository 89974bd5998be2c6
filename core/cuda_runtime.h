// The part of the CUDA runtime that core uses, without CUDA's headers. Implemented in cuda/, and in
// no_cuda/ for builds without the toolkit. None of them changes the caller's current device. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace greyhound::cuda
