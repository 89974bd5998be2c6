// Host memory that a device copies from and to without staging.
#pragma once

#include <greyhound/core/context.h>

#include <cstddef>

namespace greyhound {

// Owns `bytes` of host memory, aligned to memory_alignment and full of zeros: page-locked where the context runs on a
// GPU, so that copies are asynchronous and at full speed. Page-locking takes milliseconds and memory from everyone
// else: made once, and small.
class GREYHOUND_API HostBuffer {
 public:
  HostBuffer() = default;
  // Throws a runtime Error that names the bytes asked for when there is no such memory.
  HostBuffer(const Context& context, std::size_t bytes);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device device_;  // of the context
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace greyhound
