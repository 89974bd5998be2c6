#include <doctest/doctest.h>
#include <tests/loss/buffer.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

void scale_by(double scalar, std::initializer_list<Tensor> gradients, int threads = 2) {
  Buffer factor = vector(DType::fp32, {scalar});
  loss::scale_gradients(test_context(threads), factor, gradients);
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("scale_gradients: every dtype and stride, rounded once") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t columns : {1, 7, 64, 40000}) {
      for (const std::int64_t offset : {0, 1}) {
        Normal normal(4);
        Buffer a(dtype, Shape{3, columns}, columns + 2, offset), b(dtype, Shape{columns}, 0, offset);
        a.fill([&](auto, auto) { return normal(); });
        b.fill([&](auto, auto) { return normal(); });
        const Buffer a_before = a, b_before = b;
        const float scalar = 0.3f;
        scale_by(scalar, {a.tensor(), Tensor(), b.tensor()}, offset == 0 ? 1 : 4);
        const auto expected = [&](double before) {
          Buffer rounded(dtype, Shape{1});
          rounded.set(0, 0, static_cast<float>(before) * scalar);
          return rounded[0];
        };
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < a.elements(); ++i) wrong += a[i] != expected(a_before[i]);
        for (std::int64_t i = 0; i < b.elements(); ++i) wrong += b[i] != expected(b_before[i]);
        CHECK(wrong == 0);
        CHECK(a.guards_intact());
        CHECK(b.guards_intact());
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND(
    "scale_gradients: 1 touches nothing, not even the bits of a NaN; 0 gives exact zeros, of NaN too") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    // Signalling NaNs with a payload: passing one through arithmetic sets its quiet bit.
    Buffer signalling(dtype, Shape{2, 33});
    unsigned char* bytes = signalling.bytes();
    const unsigned pattern = dtype == DType::fp32 ? 0x7f812345u : dtype == DType::bf16 ? 0x7f85u : 0x7d05u;
    for (std::int64_t i = 0; i < signalling.elements(); ++i) {
      std::memcpy(bytes + static_cast<std::size_t>(i) * size_of(dtype), &pattern, size_of(dtype));
    }
    const Buffer before = signalling;
    scale_by(1, {signalling.tensor()});
    CHECK(signalling.same_bits(before));
    signalling.set(0, 0, -infinity);
    signalling.set(0, 1, -3);
    scale_by(0, {signalling.tensor()});
    CHECK(signalling.all_zero_bits());
  }
}

TEST_CASE_ON_EACH_BACKEND("scale_gradients: after the fact like an upstream given beforehand") {
  Buffer logits = matrix(DType::fp32, 1, {1, 2, 3, 4}), y = targets({3});
  Buffer later = logits, upstream = vector(DType::fp32, {1024});
  const Context context = test_context(1);
  Scratch scratch(loss::cross_entropy_workspace_bytes(context, 1));
  Sums sums(context);
  loss::CrossEntropyOptions options;
  loss::cross_entropy_with_grad(context, later, y, options, scratch.workspace, sums.sums);
  scale_by(1024, {later.tensor()});
  options.upstream = upstream;
  loss::cross_entropy_with_grad(context, logits, y, options, scratch.workspace, sums.sums);
  CHECK(later.same_bits(logits));
}

TEST_CASE_ON_EACH_BACKEND("scale_gradients: mistakes of the caller") {
  Buffer gradient(DType::fp32, Shape{3}), two(DType::fp32, Shape{2}), half(DType::fp16, Shape{1});
  for (Buffer* scalar : {&two, &half}) {
    CHECK_THROWS_WITH_AS(loss::scale_gradients(test_context(1), *scalar, {gradient.tensor()}),
                         doctest::Contains("one fp32 number"), Error);
  }
}
