// Memory for tests of kernels: tensors between guard bytes, exact workspaces, tolerances, and the same run with other
// numbers of threads.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/core/context.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>
#include <greyhound/core/workspace.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace greyhound::testing {

inline std::vector<double> random_values(std::int64_t n, std::uint64_t seed, double low = -2, double high = 2) {
  const Philox philox{mix_key(seed, 0)};
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) {
    values.push_back(low + (high - low) * uniform(philox(static_cast<std::uint64_t>(i), 0)[0]));
  }
  return values;
}

// A matrix of fp32, bf16, fp16 or fp64 in host memory. The gaps between rows and a stretch before and after hold a
// pattern, so that a write beside the tensor is seen.
class Buffer {
 public:
  // Uninitialised: every byte is 0xff, a NaN in each floating-point dtype.
  Buffer(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride = 0)
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        stride_(row_stride == 0 ? columns : row_stride),
        bytes_(2 * guard + static_cast<std::size_t>(rows * stride_) * size_of(dtype), 0xff) {}
  // Holds the values, rounded to dtype.
  Buffer(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<double>& values,
         std::int64_t row_stride = 0)
      : Buffer(dtype, rows, columns, row_stride) {
    for (std::int64_t i = 0; i < rows * columns; ++i) set(i / columns, i % columns, values[i]);
  }

  Tensor tensor() { return Tensor(bytes_.data() + guard, dtype_, {rows_, columns_}, stride_, Device::cpu()); }
  Tensor vector() { return Tensor(bytes_.data() + guard, dtype_, {rows_ * columns_}); }

  double get(std::int64_t row, std::int64_t column) const {
    const unsigned char* element = at(row, column);
    double value = 0;
    if (dtype_ == DType::fp64) {
      std::memcpy(&value, element, sizeof value);
    } else {
      dispatch(dtype_, "buffer", [&](auto tag) {
        typename decltype(tag)::type stored;
        std::memcpy(&stored, element, sizeof stored);
        value = to_float(stored);
      });
    }
    return value;
  }
  void set(std::int64_t row, std::int64_t column, double value) {
    unsigned char* element = const_cast<unsigned char*>(at(row, column));
    if (dtype_ == DType::fp64) {
      std::memcpy(element, &value, sizeof value);
    } else {
      dispatch(dtype_, "buffer", [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T stored = from_float<T>(static_cast<float>(value));
        std::memcpy(element, &stored, sizeof stored);
      });
    }
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (std::int64_t i = 0; i < rows_ * columns_; ++i) all.push_back(get(i / columns_, i % columns_));
    return all;
  }

  const std::vector<unsigned char>& bytes() const { return bytes_; }
  DType dtype() const { return dtype_; }

  // Nothing beside the tensor's elements was written.
  bool intact() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= guard && i < bytes_.size() - guard &&
                          static_cast<std::int64_t>((i - guard) / size_of(dtype_)) % stride_ < columns_;
      if (!inside && bytes_[i] != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = 64;
  const unsigned char* at(std::int64_t row, std::int64_t column) const {
    return bytes_.data() + guard + static_cast<std::size_t>(row * stride_ + column) * size_of(dtype_);
  }

  DType dtype_;
  std::int64_t rows_, columns_, stride_;
  std::vector<unsigned char> bytes_;
};

// A workspace of exactly `bytes`, filled with NaN, with guard bytes behind it.
class ExactWorkspace {
 public:
  explicit ExactWorkspace(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<unsigned char*>(allocate(Device::cpu(), bytes + memory_alignment))) {
    std::memset(data_, 0xff, bytes + memory_alignment);
  }
  ~ExactWorkspace() { deallocate(Device::cpu(), data_); }
  ExactWorkspace(const ExactWorkspace&) = delete;
  ExactWorkspace& operator=(const ExactWorkspace&) = delete;

  Workspace workspace() { return Workspace(data_, bytes_, Device::cpu()); }
  bool intact() const {
    return std::all_of(data_ + bytes_, data_ + bytes_ + memory_alignment, [](unsigned char b) { return b == 0xff; });
  }

 private:
  std::size_t bytes_;
  unsigned char* data_;
};

// One unit in the last place of the dtype at this value.
inline double ulp(DType dtype, double value) {
  const int digits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : 24;
  const int smallest = dtype == DType::fp16 ? -14 : -126;
  const int exponent = value == 0 ? smallest : std::max(smallest, std::ilogb(value));
  return std::ldexp(1.0, exponent - digits + 1);
}

// Every element within `relative` (fp32) or one ulp (16-bit dtypes) of the exact value, plus `absolute` for what fp32
// arithmetic loses where terms cancel.
inline void check_close(const std::vector<double>& got, const std::vector<double>& exact, DType dtype, double relative,
                        double absolute) {
  REQUIRE(got.size() == exact.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double tolerance = (dtype == DType::fp32 ? relative * std::fabs(exact[i]) : ulp(dtype, exact[i])) + absolute;
    if (std::fabs(got[i] - exact[i]) <= tolerance) continue;  // false for NaN
    if (wrong++ == 0) {
      CAPTURE(i);
      CAPTURE(got[i]);
      CAPTURE(exact[i]);
      CHECK(std::fabs(got[i] - exact[i]) <= tolerance);
    }
  }
  CHECK(wrong == 0);
}

// run(context) returns the bytes of a result, the same for every number of threads.
template <class Run>
void check_same_bits_for_all_threads(Run&& run) {
  const auto expected = run(Context::cpu(1));
  for (int threads : {2, 3, 4}) {
    CAPTURE(threads);
    const bool same_bits = run(Context::cpu(threads)) == expected;
    CHECK(same_bits);
  }
}

}  // namespace greyhound::testing
