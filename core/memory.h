// Raw memory on a device. The training loop never calls these: arenas do, once.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>

#include <cstddef>
#include <cstdint>

namespace greyhound {

// Alignment of every allocation and, by default, of every planned tensor: a cache-line pair on the CPU
// and more than any vector access on a GPU asks for.
inline constexpr std::size_t memory_alignment = 256;

// Throws a runtime Error that names the bytes asked for and free. 0 bytes give nullptr.
GREYHOUND_API void* allocate(Device device, std::size_t bytes);
GREYHOUND_API void deallocate(Device device, void* pointer) noexcept;

// Bytes that can still be allocated: on the CPU what the operating system calls available, held to the
// limits of the process and its control group; on a GPU the free memory that the driver reports.
GREYHOUND_API std::int64_t available_memory(Device device);

// Enqueues a copy of `bytes` between any two devices (one of them the context's, or both the CPU).
GREYHOUND_API void copy_bytes(const Context& context, void* to, Device to_device, const void* from, Device from_device,
                              std::size_t bytes);

// Enqueues filling with a byte value.
GREYHOUND_API void fill_bytes(const Context& context, void* to, int value, std::size_t bytes);

// Enqueues a copy between contiguous tensors of one dtype and number of elements.
GREYHOUND_API void copy(const Context& context, const Tensor& to, const ConstTensor& from);

// Enqueues writing zeros to a contiguous tensor.
GREYHOUND_API void zero(const Context& context, const Tensor& to);

}  // namespace greyhound
