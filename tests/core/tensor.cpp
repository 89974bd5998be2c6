#include <greyhound/core/tensor.h>

#include <doctest/doctest.h>

#include <type_traits>

using namespace greyhound;

TEST_CASE("shape: sizes, rows and columns") {
  CHECK(Shape().rank() == 0);
  CHECK(Shape().elements() == 1);
  CHECK(Shape().rows() == 1);
  CHECK(Shape().columns() == 1);
  CHECK(Shape{5}.rows() == 1);
  CHECK(Shape{5}.columns() == 5);
  const Shape shape{2, 3, 4, 5};
  CHECK(shape.elements() == 120);
  CHECK(shape.rows() == 24);
  CHECK(shape.columns() == 5);
  CHECK(to_string(shape) == "[2, 3, 4, 5]");
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(Shape{2} != Shape{2, 1});
  CHECK(Shape{0, 7}.elements() == 0);
  CHECK(Shape{65536, 131072}.elements() == 8589934592);
}

TEST_CASE("shape: mistakes are refused, overflow included") {
  CHECK_THROWS_WITH_AS((Shape{1, 2, 3, 4, 5}), "shape: at most 4 dimensions, got 5", Error);
  CHECK_THROWS_WITH_AS((Shape{3, -1}), "shape: negative dimension -1", Error);
  CHECK_THROWS_AS((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
  CHECK_THROWS_AS((Shape{std::int64_t{1} << 40, 0, std::int64_t{1} << 40}), Error);
  CHECK_NOTHROW((Shape{std::int64_t{1} << 59}));
}

TEST_CASE("tensor: views of rows, slices and other shapes") {
  float data[24];
  for (int i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
  const Tensor dense(data, DType::fp32, {2, 3, 4});
  CHECK(dense.contiguous());
  CHECK(dense.rows() == 6);
  CHECK(dense.columns() == 4);
  CHECK(dense.bytes() == 96);
  CHECK(*dense.row<float>(5) == 20);
  const Tensor rows = dense.row_range(2, 3);
  CHECK(rows.shape == Shape{3, 4});
  CHECK(*rows.as<float>() == 8);
  CHECK(dense.row_range(6, 0).elements() == 0);
  CHECK(dense.slice(3, {2, 5}).as<float>()[9] == 12);
  CHECK(dense.reshape({24}).as<float>()[23] == 23);
  CHECK_THROWS_AS(dense.row_range(5, 2), Error);
  CHECK_THROWS_AS(dense.row_range(-1, 2), Error);
  CHECK_THROWS_AS(dense.row_range(1, INT64_MAX), Error);
  CHECK_THROWS_WITH_AS(dense.slice(20, {5}), "tensor: slice [5] at 20 of [2, 3, 4]", Error);
  const volatile std::int64_t far_away = INT64_MAX;  // volatile: a compiler that saw the value would warn of it
  CHECK_THROWS_AS(dense.slice(far_away, {5}), Error);
  CHECK_THROWS_WITH_AS(dense.reshape({5}), "tensor: cannot see [2, 3, 4] as [5]", Error);
  CHECK_THROWS_WITH_AS(dense.as<bf16>(), "tensor: is fp32, not bf16", Error);
}

TEST_CASE("tensor: row strides") {
  float data[24];
  for (int i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
  const Tensor strided = tensor(static_cast<void*>(data), DType::fp32, {3, 5}, 8);
  CHECK_FALSE(strided.contiguous());
  CHECK(strided.row<float>(2)[4] == 20);
  CHECK(strided.row_range(1, 2).row<float>(1)[0] == 16);
  CHECK(strided.row_range(1, 1).contiguous());
  CHECK_THROWS_AS(strided.reshape({15}), Error);
  CHECK_THROWS_AS(strided.slice(0, {5}), Error);
  CHECK_THROWS_WITH_AS(tensor(static_cast<void*>(data), DType::fp32, {3, 5}, 4),
                       "tensor: row stride 4 is less than the row's length 5", Error);
  CHECK_NOTHROW(tensor(static_cast<void*>(data), DType::fp32, {1, 5}, 1));
}

TEST_CASE("tensor: const and mutable views") {
  static_assert(std::is_convertible_v<Tensor, ConstTensor>);
  static_assert(!std::is_convertible_v<ConstTensor, Tensor>);
  static_assert(std::is_same_v<decltype(Tensor().as<float>()), float*>);
  static_assert(std::is_same_v<decltype(ConstTensor().as<float>()), const float*>);
  const double data[2] = {1, 2};
  const ConstTensor view = tensor(data, DType::fp64, {2});
  CHECK(view.as<double>()[1] == 2);
  CHECK_FALSE(Tensor());
  CHECK(view);
}

TEST_CASE("require_tensor: says what was expected and what was given") {
  float data[6];
  const Tensor given(data, DType::fp32, {2, 3});
  CHECK_NOTHROW(require_tensor(given, "weight", DType::fp32, {2, 3}));
  CHECK_THROWS_WITH_AS(require_tensor(given, "weight", DType::bf16, {2, 3}), "weight: expected bf16, got fp32", Error);
  CHECK_THROWS_WITH_AS(require_tensor(given, "weight", DType::fp32, {3, 2}),
                       "weight: expected shape [3, 2], got [2, 3]", Error);
  CHECK_THROWS_WITH_AS(require_tensor(Tensor(), "weight", DType::fp32, {2, 3}), "weight: not given", Error);
  CHECK_NOTHROW(require_tensor(Tensor(nullptr, DType::fp32, {0, 3}), "weight", DType::fp32, {0, 3}));
}
