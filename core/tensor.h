// Tensor: a non-owning view of memory on a device. Cheap to copy, never allocates.
#pragma once

#include <greyhound/core/device.h>
#include <greyhound/core/dtype.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace greyhound {

// Up to four dimensions, outermost first. The default is a scalar (rank 0, one element).
class Shape {
 public:
  static constexpr int max_rank = 4;
  // So that sizes in bytes, and sums of a few of them, fit 64 bits whatever the dtype.
  static constexpr std::int64_t max_elements = std::int64_t{1} << 59;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) {
    require(sizes.size() <= max_rank, "shape: at most ", +max_rank, " dimensions, got ", sizes.size());
    std::int64_t product = 1;
    for (std::int64_t size : sizes) {
      require(size >= 0, "shape: negative dimension ", size);
      // Dimensions of 0 are left out of the product: rows() and row strides leave them out too.
      require(size <= max_elements / product, "shape: more than 2^59 elements");
      if (size > 0) product *= size;
      sizes_[rank_++] = size;
    }
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return sizes_[axis]; }

  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= sizes_[axis];
    return product;
  }

  // The last dimension (1 for a scalar), and the product of all dimensions before it.
  std::int64_t columns() const { return rank_ == 0 ? 1 : sizes_[rank_ - 1]; }
  std::int64_t rows() const {
    std::int64_t product = 1;
    for (int axis = 0; axis + 1 < rank_; ++axis) product *= sizes_[axis];
    return product;
  }

  bool operator==(const Shape& other) const { return rank_ == other.rank_ && sizes_ == other.sizes_; }
  bool operator!=(const Shape& other) const { return !(*this == other); }

 private:
  std::array<std::int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

// "[8, 1024]".
inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

// A view whose elements are `Void`-qualified: BasicTensor<void> may be written, BasicTensor<const void>
// may not. Leading dimensions are dense over each other; consecutive rows (last dimension) stand
// `row_stride` elements apart. Data needs only its element's alignment.
template <class Void>
struct BasicTensor {
  static constexpr bool is_const = std::is_const_v<Void>;
  template <class T>
  using Pointer = std::conditional_t<is_const, const T*, T*>;

  Void* data = nullptr;
  DType dtype = DType::fp32;
  Shape shape;
  std::int64_t row_stride = 1;  // in elements
  Device device;

  BasicTensor() = default;
  BasicTensor(Void* data, DType dtype, const Shape& shape, Device device = Device::cpu())
      : BasicTensor(data, dtype, shape, shape.columns(), device) {}
  BasicTensor(Void* data, DType dtype, const Shape& shape, std::int64_t row_stride, Device device)
      : data(data), dtype(dtype), shape(shape), row_stride(row_stride), device(device) {
    require(row_stride >= shape.columns() || shape.rows() <= 1, "tensor: row stride ", row_stride,
            " is less than the row's length ", shape.columns());
  }

  // A mutable view is accepted wherever a const view is.
  template <class Other, class = std::enable_if_t<is_const && std::is_same_v<Other, void>>>
  BasicTensor(const BasicTensor<Other>& other)
      : data(other.data), dtype(other.dtype), shape(other.shape), row_stride(other.row_stride), device(other.device) {}

  // False for the default-constructed view, which stands for "not given".
  explicit operator bool() const { return data != nullptr; }

  std::int64_t elements() const { return shape.elements(); }
  std::int64_t rows() const { return shape.rows(); }
  std::int64_t columns() const { return shape.columns(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  bool contiguous() const { return row_stride == columns() || rows() <= 1; }

  // The elements as T*; throws when T is not the tensor's dtype.
  template <class T>
  Pointer<T> as() const {
    require(dtype_of<T> == dtype, "tensor: is ", name_of(dtype), ", not ", name_of(dtype_of<T>));
    return static_cast<Pointer<T>>(data);
  }

  // The first element of row `row`.
  template <class T>
  Pointer<T> row(std::int64_t row) const {
    return as<T>() + row * row_stride;
  }

  // Rows [first, first + count) of the view, as [count, columns].
  BasicTensor row_range(std::int64_t first, std::int64_t count) const {
    require(first >= 0 && count >= 0 && first <= rows() && count <= rows() - first, "tensor: ", count, " rows from ",
            first, " of ", rows());
    BasicTensor range = *this;
    range.data = offset_bytes(first * row_stride);
    range.shape = Shape{count, columns()};
    return range;
  }

  // Elements [first, first + shape.elements()) of a contiguous view, seen as `new_shape`.
  BasicTensor slice(std::int64_t first, const Shape& new_shape) const {
    require(contiguous(), "tensor: a slice needs dense rows");
    if (first < 0 || first > elements() || new_shape.elements() > elements() - first) {
      throw_usage("tensor: slice ", to_string(new_shape), " at ", first, " of ", to_string(shape));
    }
    return BasicTensor(offset_bytes(first), dtype, new_shape, device);
  }

  // The same elements of a contiguous view in another shape.
  BasicTensor reshape(const Shape& new_shape) const {
    if (new_shape.elements() != elements()) {
      throw_usage("tensor: cannot see ", to_string(shape), " as ", to_string(new_shape));
    }
    return slice(0, new_shape);
  }

 private:
  Void* offset_bytes(std::int64_t elements) const {
    using Byte = std::conditional_t<is_const, const char, char>;
    return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
  }
};

using Tensor = BasicTensor<void>;
using ConstTensor = BasicTensor<const void>;

// Raw pointers become tensors with one call. `row_stride` counts elements; 0 means dense rows.
inline Tensor tensor(void* data, DType dtype, const Shape& shape, std::int64_t row_stride = 0,
                     Device device = Device::cpu()) {
  return Tensor(data, dtype, shape, row_stride == 0 ? shape.columns() : row_stride, device);
}
inline ConstTensor tensor(const void* data, DType dtype, const Shape& shape, std::int64_t row_stride = 0,
                          Device device = Device::cpu()) {
  return ConstTensor(data, dtype, shape, row_stride == 0 ? shape.columns() : row_stride, device);
}

// Throws unless `given` has dtype and shape as expected; `name` names it in the message.
inline void require_tensor(const ConstTensor& given, const char* name, DType dtype, const Shape& shape) {
  require(given.data != nullptr || given.elements() == 0, name, ": not given");
  require(given.dtype == dtype, name, ": expected ", name_of(dtype), ", got ", name_of(given.dtype));
  if (given.shape != shape) throw_usage(name, ": expected shape ", to_string(shape), ", got ", to_string(given.shape));
}

}  // namespace greyhound
