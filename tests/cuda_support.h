// For tests that run an operator on the CPU and on a GPU and compare: host tensors, their copies on a device, and
// tolerances. Calls no CUDA API, so that these tests compile in every build.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>
#include <greyhound/core/workspace.h>
#include <tests/backend.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace greyhound::cuda_test {

using test::device_context;
using test::have_device;

// A tensor in host memory. Every byte that no element covers (guards around it, gaps between rows) holds 0xff, and so
// do elements that were not set: NaN in each floating-point dtype.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, const Shape& shape, std::int64_t row_stride = 0, std::int64_t offset = 0)
      : dtype_(dtype),
        shape_(shape),
        stride_(row_stride == 0 ? shape.columns() : row_stride),
        offset_(guard + static_cast<std::size_t>(offset) * size_of(dtype)),
        bytes_(offset_ + static_cast<std::size_t>(shape.rows() * stride_) * size_of(dtype) + guard, 0xff) {}

  // Uniform in [low, high), rounded to dtype; the same on every machine.
  static HostTensor random(DType dtype, const Shape& shape, std::uint64_t seed, double low = -2, double high = 2,
                           std::int64_t row_stride = 0, std::int64_t offset = 0) {
    HostTensor tensor(dtype, shape, row_stride, offset);
    const Philox philox{mix_key(seed, 1)};
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      tensor.set(i, low + (high - low) * uniform(philox(static_cast<std::uint64_t>(i), 0)[0]));
    }
    return tensor;
  }
  static HostTensor of(DType dtype, std::initializer_list<double> values) {
    HostTensor tensor(dtype, Shape{static_cast<std::int64_t>(values.size())});
    std::int64_t i = 0;
    for (double value : values) tensor.set(i++, value);
    return tensor;
  }

  void set(std::int64_t element, double value) {
    store(element, [&](auto tag) { return from_float<decltype(tag)>(static_cast<float>(value)); });
  }
  void set_index(std::int64_t element, std::int64_t value) {
    if (dtype_ == DType::int64) {
      std::memcpy(at(element), &value, sizeof value);
    } else {
      const auto narrow = static_cast<std::int32_t>(value);
      std::memcpy(at(element), &narrow, sizeof narrow);
    }
  }
  double get(std::int64_t element) const {
    double result = 0;
    if (dtype_ == DType::int32) {
      std::int32_t value;
      std::memcpy(&value, at(element), sizeof value);
      return value;
    }
    dispatch(dtype_, "host tensor", [&](auto tag) {
      typename decltype(tag)::type value;
      std::memcpy(&value, at(element), sizeof value);
      result = to_float(value);
    });
    return result;
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (std::int64_t i = 0; i < shape_.elements(); ++i) all.push_back(get(i));
    return all;
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::vector<unsigned char>& bytes() { return bytes_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

  // The elements at `memory`, which holds a copy of bytes().
  Tensor view(void* memory, Device device) const {
    if (bytes_.empty()) return Tensor();
    return Tensor(static_cast<unsigned char*>(memory) + offset_, dtype_, shape_, stride_, device);
  }

  // Nothing beside the elements was written.
  bool intact() const {
    const std::size_t size = size_of(dtype_);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const bool before = i < offset_, behind = i >= bytes_.size() - guard;
      const bool gap =
          !before && !behind && static_cast<std::int64_t>((i - offset_) / size) % stride_ >= shape_.columns();
      if ((before || behind || gap) && bytes_[i] != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = 256;

  template <class Make>
  void store(std::int64_t element, Make&& make) {
    dispatch(dtype_, "host tensor", [&](auto tag) {
      const auto value = make(typename decltype(tag)::type{});
      std::memcpy(at(element), &value, sizeof value);
    });
  }
  const unsigned char* at(std::int64_t element) const {
    const std::int64_t row = element / shape_.columns(), column = element % shape_.columns();
    const std::size_t byte = offset_ + static_cast<std::size_t>(row * stride_ + column) * size_of(dtype_);
    require(byte + guard < bytes_.size(), "host tensor: no element ", element);
    return bytes_.data() + byte;
  }
  unsigned char* at(std::int64_t element) {
    return const_cast<unsigned char*>(static_cast<const HostTensor*>(this)->at(element));
  }

  DType dtype_ = DType::fp32;
  Shape shape_{0};
  std::int64_t stride_ = 1;
  std::size_t offset_ = 0;
  std::vector<unsigned char> bytes_;  // empty: no tensor
};

// Class indices [rows], or [rows, per_row], for at least 5 rows: row 1 is ignored, rows 2 and 3 begin with indices out
// of range, row 4 has class 0, twice where it has room.
inline HostTensor hard_indices(DType dtype, std::int64_t rows, std::int64_t per_row, std::int64_t vocab) {
  const std::int64_t columns = std::max<std::int64_t>(1, per_row);
  HostTensor index(dtype, per_row == 0 ? Shape{rows} : Shape{rows, per_row});
  for (std::int64_t i = 0; i < rows * columns; ++i) index.set_index(i, (i * 7919) % vocab);
  for (std::int64_t k = 0; k < columns; ++k) index.set_index(1 * columns + k, -100);
  index.set_index(2 * columns, vocab);
  index.set_index(3 * columns, -1);
  index.set_index(4 * columns, 0);
  if (columns > 1) index.set_index(4 * columns + 1, 0);
  return index;
}

// Memory on a context's device.
class DeviceMemory {
 public:
  DeviceMemory(const Context& context, std::size_t bytes, int fill = 0xff)
      : context_(context), bytes_(bytes), data_(allocate(context.device(), bytes)) {
    fill_bytes(context, data_, fill, bytes);
  }
  ~DeviceMemory() { deallocate(context_.device(), data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  void upload(const void* from) const {
    copy_bytes(context_, data_, context_.device(), from, Device::cpu(), bytes_);
    context_.synchronize();
  }
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> bytes(bytes_);
    copy_bytes(context_, bytes.data(), Device::cpu(), data_, context_.device(), bytes_);
    context_.synchronize();
    return bytes;
  }

 private:
  Context context_;
  std::size_t bytes_;
  void* data_;
};

// A copy of a host tensor on a context's device.
class Placed {
 public:
  Placed(const Context& context, const HostTensor& host)
      : context_(context), host_(host), memory_(context, host.bytes().size()) {
    memory_.upload(host.bytes().data());
  }

  Tensor tensor() const { return host_.view(memory_.data(), context_.device()); }
  operator Tensor() const { return tensor(); }
  operator ConstTensor() const { return tensor(); }
  // What is there now.
  HostTensor back() const {
    HostTensor now = host_;
    now.bytes() = memory_.download();
    return now;
  }
  // Other contents of the same shape.
  void upload(const HostTensor& host) const { memory_.upload(host.bytes().data()); }

 private:
  Context context_;
  HostTensor host_;
  DeviceMemory memory_;
};

// A workspace of exactly `bytes`, full of NaN bits, with guard bytes behind it.
class GuardedWorkspace {
 public:
  GuardedWorkspace(const Context& context, std::size_t bytes)
      : workspace(nullptr, 0, context.device()), bytes_(bytes), memory_(context, bytes + memory_alignment) {
    workspace = Workspace(memory_.data(), bytes, context.device());
  }
  bool intact() const {
    const std::vector<unsigned char> all = memory_.download();
    return std::all_of(all.begin() + static_cast<std::ptrdiff_t>(bytes_), all.end(),
                       [](unsigned char byte) { return byte == 0xff; });
  }

  Workspace workspace;

 private:
  std::size_t bytes_;
  DeviceMemory memory_;
};

// One unit in the last place of the dtype at this value.
inline double ulp(DType dtype, double value) {
  const int digits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : 24;
  const int smallest = dtype == DType::fp16 ? -14 : -126;
  const int exponent = value == 0 || !std::isfinite(value) ? smallest : std::max(smallest, std::ilogb(value));
  return std::ldexp(1.0, exponent - digits + 1);
}

// Whether two results agree: both NaN, the same infinity, or apart by at most `relative` of the expected one plus
// `absolute`, and one ulp in 16-bit dtypes.
inline bool agree(DType dtype, double got, double expected, double relative, double absolute) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  if (std::isinf(expected) || std::isinf(got)) return got == expected;
  const double rounding = dtype == DType::fp32 || dtype == DType::int32 ? 0 : ulp(dtype, expected);
  return std::fabs(got - expected) <= relative * std::fabs(expected) + absolute + rounding;
}

inline void check_agree(const char* name, const HostTensor& got, const HostTensor& expected, double relative,
                        double absolute = 0) {
  REQUIRE(got.shape() == expected.shape());
  CAPTURE(std::string(name));
  CHECK(got.intact());
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < got.shape().elements(); ++i) {
    const double value = got.get(i), want = expected.get(i);
    if (agree(got.dtype(), value, want, relative, absolute)) continue;
    if (wrong++ > 0) continue;
    CAPTURE(i);
    CAPTURE(value);
    CAPTURE(want);
    CHECK(agree(got.dtype(), value, want, relative, absolute));
  }
  CHECK(wrong == 0);
}

}  // namespace greyhound::cuda_test
