// Memory for tests of the loss: a matrix of any dtype, row stride and misalignment, set and read as doubles, with guard
// bytes around it. And sums and workspaces to call with.
#pragma once

#include <greyhound/core/memory.h>
#include <greyhound/core/workspace.h>
#include <greyhound/loss/loss.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace greyhound::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Aligned memory between guards that must stay as they were.
class Block {
 public:
  explicit Block(std::size_t bytes, int fill = 0xff)
      : bytes_(bytes), memory_(static_cast<unsigned char*>(allocate(Device::cpu(), total()))) {
    std::memset(memory_, guard_byte, total());
    std::memset(data(), fill, bytes);
  }
  Block(const Block& other) : Block(other.bytes_) { std::memcpy(memory_, other.memory_, total()); }
  Block(Block&& other) noexcept : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)) {}
  Block& operator=(Block other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Block() { deallocate(Device::cpu(), memory_); }

  unsigned char* data() { return memory_ + guard; }
  const unsigned char* data() const { return memory_ + guard; }
  std::size_t bytes() const { return bytes_; }
  bool guards_intact() const {
    for (std::size_t i = 0; i < total(); ++i) {
      if ((i < guard || i >= guard + bytes_) && memory_[i] != guard_byte) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = memory_alignment;
  static constexpr unsigned char guard_byte = 0xa5;
  std::size_t total() const { return bytes_ + 2 * guard; }

  std::size_t bytes_;
  unsigned char* memory_;
};

// A vector or matrix. Starts as NaN bits (integers: -1), so that stale elements show.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, const Shape& shape, std::int64_t row_stride = 0, std::int64_t offset = 0)
      : block_((offset + shape.rows() * std::max(row_stride, shape.columns())) * size_of(dtype)),
        dtype_(dtype),
        shape_(shape),
        row_stride_(row_stride == 0 ? shape.columns() : row_stride),
        offset_(offset) {}

  Tensor tensor() {
    if (shape_.elements() == 0) return Tensor(nullptr, dtype_, shape_);
    return Tensor(block_.data() + offset_ * size_of(dtype_), dtype_, shape_, row_stride_, Device::cpu());
  }
  operator Tensor() { return tensor(); }
  operator ConstTensor() { return tensor(); }

  std::int64_t rows() const { return shape_.rows(); }
  std::int64_t columns() const { return shape_.columns(); }
  std::int64_t elements() const { return shape_.elements(); }
  DType dtype() const { return dtype_; }

  void set(std::int64_t row, std::int64_t column, double value) {
    void* at = address(row, column);
    switch (dtype_) {
      case DType::fp32: *static_cast<float*>(at) = static_cast<float>(value); break;
      case DType::bf16: *static_cast<bf16*>(at) = from_float<bf16>(static_cast<float>(value)); break;
      case DType::fp16: *static_cast<fp16*>(at) = from_float<fp16>(static_cast<float>(value)); break;
      case DType::int32: *static_cast<std::int32_t*>(at) = static_cast<std::int32_t>(value); break;
      default: throw_usage("test buffer: set ", name_of(dtype_));
    }
  }
  void set_index(std::int64_t row, std::int64_t column, std::int64_t value) {
    void* at = address(row, column);
    if (dtype_ == DType::int64) {
      *static_cast<std::int64_t*>(at) = value;
    } else {
      *static_cast<std::int32_t*>(at) = static_cast<std::int32_t>(value);
    }
  }
  double at(std::int64_t row, std::int64_t column) const {
    const void* from = address(row, column);
    switch (dtype_) {
      case DType::fp32: return *static_cast<const float*>(from);
      case DType::bf16: return to_float(*static_cast<const bf16*>(from));
      case DType::fp16: return to_float(*static_cast<const fp16*>(from));
      case DType::int32: return *static_cast<const std::int32_t*>(from);
      default: throw_usage("test buffer: at ", name_of(dtype_));
    }
  }
  // Elements in reading order: of a vector, or of a matrix.
  double operator[](std::int64_t i) const { return at(i / columns(), i % columns()); }

  template <class Function>
  Buffer& fill(Function&& value) {
    for (std::int64_t i = 0; i < elements(); ++i)
      set(i / columns(), i % columns(), value(i / columns(), i % columns()));
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> all(elements());
    for (std::int64_t i = 0; i < elements(); ++i) all[i] = (*this)[i];
    return all;
  }
  std::vector<double> row(std::int64_t row, std::int64_t count) const {
    std::vector<double> values(count);
    for (std::int64_t j = 0; j < count; ++j) values[j] = at(row, j);
    return values;
  }
  // Whether the elements have the same bits, whatever the strides.
  bool same_bits(const Buffer& other) const {
    if (shape_ != other.shape_ || dtype_ != other.dtype_) return false;
    for (std::int64_t i = 0; i < rows(); ++i) {
      if (std::memcmp(address(i, 0), other.address(i, 0), columns() * size_of(dtype_)) != 0) return false;
    }
    return true;
  }
  // Whether every byte of every element is zero: +0, not -0.
  bool all_zero_bits() const {
    for (std::int64_t i = 0; i < elements(); ++i) {
      const char* at = static_cast<const char*>(address(i / columns(), i % columns()));
      for (std::size_t b = 0; b < size_of(dtype_); ++b) {
        if (at[b] != 0) return false;
      }
    }
    return true;
  }
  // Whether nothing around the elements was written: before, after, and between rows.
  bool guards_intact() const {
    if (!block_.guards_intact()) return false;
    const unsigned char* bytes = block_.data();
    const std::size_t size = size_of(dtype_);
    for (std::size_t b = 0; b < block_.bytes(); ++b) {
      const auto element = static_cast<std::int64_t>(b / size) - offset_;
      const bool outside = element < 0 || element / row_stride_ >= rows() || element % row_stride_ >= columns();
      if (outside && bytes[b] != 0xff) return false;
    }
    return true;
  }

 private:
  const void* address(std::int64_t row, std::int64_t column) const {
    return block_.data() + (offset_ + row * row_stride_ + column) * size_of(dtype_);
  }
  void* address(std::int64_t row, std::int64_t column) {
    return const_cast<void*>(static_cast<const Buffer*>(this)->address(row, column));
  }
  Block block_{0};
  DType dtype_ = DType::fp32;
  Shape shape_{0};
  std::int64_t row_stride_ = 1, offset_ = 0;
};

inline Buffer vector(DType dtype, const std::vector<double>& values) {
  Buffer buffer(dtype, Shape{static_cast<std::int64_t>(values.size())});
  return buffer.fill([&](std::int64_t, std::int64_t j) { return values[j]; });
}
inline Buffer matrix(DType dtype, std::int64_t rows, const std::vector<double>& values) {
  const std::int64_t columns = static_cast<std::int64_t>(values.size()) / rows;
  Buffer buffer(dtype, Shape{rows, columns});
  return buffer.fill([&](std::int64_t i, std::int64_t j) { return values[i * columns + j]; });
}
inline Buffer targets(const std::vector<std::int64_t>& values, DType dtype = DType::int64) {
  Buffer buffer(dtype, Shape{static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) buffer.set_index(0, static_cast<std::int64_t>(i), values[i]);
  return buffer;
}

// LossSums with their memory, reset; and a workspace of exactly the bytes asked for, full of NaN bits.
struct Sums {
  explicit Sums(const Context& context) : sums(context, &data) { sums.reset(context); }
  LossSumsData data;
  loss::LossSums sums;
};
struct Scratch {
  explicit Scratch(std::size_t bytes) : block(bytes), workspace(block.data(), bytes, Device::cpu()) {}
  Block block;
  Workspace workspace;
};

// Normal deviates that are the same wherever the tests run (std::normal_distribution is not).
class Normal {
 public:
  explicit Normal(std::uint32_t seed) : engine_(seed) {}
  double operator()() {
    const double u = (engine_() + 1.0) / 4294967297.0, v = engine_() / 4294967296.0;
    return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  std::mt19937 engine_;
};

// Distance to the next number of a dtype at |value|.
inline double ulp(DType dtype, double value) {
  const int bits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : 24;
  const int lowest = dtype == DType::fp16 ? -14 : -126;
  const int exponent = value == 0 ? lowest : std::max(lowest, std::ilogb(value));
  return std::ldexp(1.0, exponent - bits + 1);
}

}  // namespace greyhound::test
