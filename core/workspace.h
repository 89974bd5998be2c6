// Workspace: scratch memory of the caller, taken and released in stack order.
#pragma once

#include <greyhound/core/memory.h>

#include <cstddef>

namespace greyhound {

// A non-owning stack over one block of memory. Taking more than is left throws and names both sizes.
// Copies share nothing: pass by reference.
class GREYHOUND_API Workspace {
 public:
  Workspace() = default;
  // `data` must be aligned to memory_alignment.
  Workspace(void* data, std::size_t bytes, Device device);
  explicit Workspace(const Tensor& block);

  // A tensor from the top of the stack, aligned to memory_alignment. Its contents are undefined.
  Tensor take(DType dtype, const Shape& shape);

  std::size_t used() const { return used_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Releases, when it goes out of scope, everything taken since it was made.
  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), mark_(workspace.used_) {}
    ~Scope() { workspace_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t mark_;
  };

  // What take() needs for one tensor: its bytes rounded up to the alignment. Sums of these are the
  // exact size of a workspace.
  static std::size_t size(DType dtype, const Shape& shape);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
  Device device_;
};

}  // namespace greyhound
