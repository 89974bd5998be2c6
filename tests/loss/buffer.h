// Memory for tests of the loss: a matrix of any dtype, row stride and misalignment, set and read as doubles, with guard
// bytes around it. And sums and workspaces to call with.
#pragma once

#include <greyhound/core/workspace.h>
#include <greyhound/loss/loss.h>
#include <tests/loss/block.h>

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

// A vector or matrix. Starts as bits of a NaN (integers: a large number), so that stale elements show.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, const Shape& shape, std::int64_t row_stride = 0, std::int64_t offset = 0)
      : block_((offset + shape.rows() * std::max(row_stride, shape.columns())) * size_of(dtype), fill_of(dtype)),
        dtype_(dtype),
        shape_(shape),
        row_stride_(row_stride == 0 ? shape.columns() : row_stride),
        offset_(offset) {}

  // The elements for operators of the backend under test.
  Tensor tensor() {
    const Device device = test_device();
    if (shape_.elements() == 0) return Tensor(nullptr, dtype_, shape_, device);
    return Tensor(block_.on_device() + offset_ * size_of(dtype_), dtype_, shape_, row_stride_, device);
  }
  // The elements for the test itself; bytes() to write their bits.
  unsigned char* bytes() { return static_cast<unsigned char*>(address(0, 0)); }
  ConstTensor host() const { return ConstTensor(address(0, 0), dtype_, shape_, row_stride_, Device::cpu()); }
  operator Tensor() { return tensor(); }
  operator ConstTensor() { return tensor(); }

  const Shape& shape() const { return shape_; }
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
  // The same for long rows, without a look at the dtype for each element.
  void write_row(std::int64_t row, const std::vector<float>& values) {
    dispatch(dtype_, "test buffer", [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* to = static_cast<T*>(address(row, 0));
      for (std::size_t j = 0; j < values.size(); ++j) to[j] = from_float<T>(values[j]);
    });
  }
  void read_row(std::int64_t row, std::vector<float>& values) const {
    values.resize(columns());
    dispatch(dtype_, "test buffer", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* from = static_cast<const T*>(address(row, 0));
      for (std::size_t j = 0; j < values.size(); ++j) values[j] = to_float(from[j]);
    });
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
  // Whether every element was written: none has the bits that it started with, which no operator writes.
  bool written() const {
    const unsigned char fill = fill_of(dtype_);
    for (std::int64_t i = 0; i < elements(); ++i) {
      const auto* at = static_cast<const unsigned char*>(address(i / columns(), i % columns()));
      if (std::all_of(at, at + size_of(dtype_), [&](unsigned char b) { return b == fill; })) return false;
    }
    return true;
  }
  // Whether nothing around the elements was written: before, after, and between rows.
  bool guards_intact() const {
    const unsigned char* bytes = block_.data();
    const auto untouched = [&](std::int64_t first, std::int64_t last) {  // elements
      const unsigned char* end = bytes + last * size_of(dtype_);
      return std::all_of(bytes + first * size_of(dtype_), end, [&](unsigned char b) { return b == fill_of(dtype_); });
    };
    bool intact = block_.guards_intact() && untouched(0, offset_);
    for (std::int64_t i = 0; i < rows(); ++i) {
      intact &= untouched(offset_ + i * row_stride_ + columns(), offset_ + (i + 1) * row_stride_);
    }
    return intact;
  }

 private:
  static unsigned char fill_of(DType dtype) { return dtype == DType::int32 || dtype == DType::int64 ? 0x77 : 0xff; }
  const void* address(std::int64_t row, std::int64_t column) const {
    return block_.data() + (offset_ + row * row_stride_ + column) * size_of(dtype_);
  }
  void* address(std::int64_t row, std::int64_t column) {
    return block_.data() + (offset_ + row * row_stride_ + column) * size_of(dtype_);
  }
  Block block_{0};
  DType dtype_ = DType::fp32;
  Shape shape_{0};
  std::int64_t row_stride_ = 1, offset_ = 0;
};

// What a tensor of the backend under test holds, dense.
inline std::vector<unsigned char> bytes_of(const ConstTensor& tensor) {
  require(tensor.contiguous(), "test: a dense tensor");
  const Context context = test_context(1);
  std::vector<unsigned char> bytes(tensor.bytes());
  copy_bytes(context, bytes.data(), Device::cpu(), tensor.data, tensor.device, bytes.size());
  context.synchronize();
  return bytes;
}

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

// LossSums with their memory, reset; a workspace of exactly the bytes asked for, full of NaN bits; an ErrorWord of
// zeros.
struct Sums {
  explicit Sums(const Context& with) : context(with), block(sizeof(LossSumsData)), sums(context, block.on_device()) {
    sums.reset(context);
  }
  LossSumsData data() const {
    LossSumsData values;
    sums.read_async(context, &values);
    context.synchronize();
    return values;
  }
  Context context;
  Block block;
  loss::LossSums sums;
};
struct Scratch {
  explicit Scratch(std::size_t bytes) : block(bytes), workspace(block.on_device(), bytes, test_device()) {}
  bool guards_intact() {
    block.on_device();  // whatever was written there since the last look
    return block.guards_intact();
  }
  Block block;
  Workspace workspace;
};
struct Errors {
  Errors() : block(sizeof(ErrorWord), 0) {}
  ErrorWord* on_device() { return reinterpret_cast<ErrorWord*>(block.on_device()); }
  ErrorWord read() {
    on_device();
    ErrorWord word;
    std::memcpy(&word, block.data(), sizeof word);
    return word;
  }
  Block block;
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
