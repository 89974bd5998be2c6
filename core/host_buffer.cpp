#include <greyhound/core/host_buffer.h>

#include <greyhound/core/cuda_runtime.h>
#include <greyhound/core/memory.h>

#include <cstring>
#include <utility>

namespace greyhound {

HostBuffer::HostBuffer(const Context& context, std::size_t bytes) : device_(context.device()), bytes_(bytes) {
  if (bytes == 0) return;
  data_ = device_.is_cuda() ? cuda::allocate_host(device_.index, bytes) : allocate(Device::cpu(), bytes);
  std::memset(data_, 0, bytes);
}

HostBuffer::~HostBuffer() {
  if (data_ == nullptr) return;
  if (device_.is_cuda()) {
    cuda::deallocate_host(device_.index, data_);
  } else {
    deallocate(Device::cpu(), data_);
  }
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace greyhound
