#include <greyhound/core/workspace.h>

#include <greyhound/core/arena.h>

namespace greyhound {

Workspace::Workspace(void* data, std::size_t bytes, Device device)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), device_(device) {
  require(data != nullptr || bytes == 0, "workspace: ", bytes, " bytes at a null pointer");
  require(reinterpret_cast<std::uintptr_t>(data) % memory_alignment == 0, "workspace: must be aligned to ",
          memory_alignment, " bytes");
}

Workspace::Workspace(const Tensor& block) : Workspace(block.data, block.bytes(), block.device) {
  require(block.contiguous(), "workspace: expected a contiguous block");
}

std::size_t Workspace::size(DType dtype, const Shape& shape) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
}

Tensor Workspace::take(DType dtype, const Shape& shape) {
  const std::size_t need = size(dtype, shape);
  require(need <= bytes_ - used_, "workspace: ", need, " bytes asked for, ", bytes_ - used_, " of ", bytes_,
          " left; use a workspace of the size that the plan names");
  Tensor taken(data_ + used_, dtype, shape, device_);
  used_ += need;
  return taken;
}

}  // namespace greyhound
