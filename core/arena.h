// Arena: one allocation on one device, planned before it is made.
#pragma once

#include <greyhound/core/memory.h>
#include <greyhound/core/tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace greyhound {

// The list of tensors that an arena will hold. Planning allocates nothing.
class GREYHOUND_API ArenaPlan {
 public:
  struct Entry {
    std::string region;  // "parameters", "activations", ...: a line of the printed table
    std::string name;
    DType dtype;
    Shape shape;
    std::size_t offset;  // bytes from the arena's start, a multiple of memory_alignment
    std::size_t bytes;   // rounded up to memory_alignment
  };
  struct Region {
    std::string name;
    std::size_t bytes;
  };
  using Slot = std::size_t;

  // Appends a tensor and returns the slot by which the arena gives it out.
  Slot add(const std::string& region, const std::string& name, DType dtype, const Shape& shape);

  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<Region> regions() const;  // in order of first use
  std::size_t bytes() const { return bytes_; }

  // The plan for people: a line per region with bytes and share, then total and free.
  // `free_bytes` < 0 leaves the last line out.
  std::string table(std::int64_t free_bytes = -1) const;

 private:
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
};

// Owns the memory of a plan. Contents start as zeros.
class GREYHOUND_API Arena {
 public:
  Arena() = default;
  // Allocates once. When the plan does not fit, throws a runtime Error that names the plan's regions,
  // the bytes asked for and free.
  Arena(const Context& context, ArenaPlan plan);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  Tensor operator[](ArenaPlan::Slot slot) const;
  const ArenaPlan& plan() const { return plan_; }
  Device device() const { return device_; }

 private:
  ArenaPlan plan_;
  void* data_ = nullptr;
  Device device_;
};

// "1.50 GiB", "12.0 MiB", "512 B".
GREYHOUND_API std::string format_bytes(double bytes);

}  // namespace greyhound
