// More logits than 31 and 32 bits count, in place, with twins that are small enough for every run.
#include <doctest/doctest.h>
#include <greyhound/core/memory.h>
#include <tests/loss/buffer.h>
#include <tests/reference/cross_entropy.h>

#include <memory>

using namespace greyhound;
using namespace greyhound::test;

namespace {

struct Free {
  Device device;
  void operator()(void* pointer) const { deallocate(device, pointer); }
};

// bf16 logits [rows, vocab] of zeros; row i has `target_logit(i)` at its last column, which is its target.
struct LargeCall {
  std::int64_t rows, vocab;
  Context context = test_context();
  std::unique_ptr<bf16, Free> memory;
  Buffer row_loss;
  LossSumsData sums;

  template <class Function>
  LargeCall(std::int64_t n, std::int64_t v, Function&& target_logit)
      : rows(n),
        vocab(v),
        memory(static_cast<bf16*>(allocate(context.device(), n * v * 2)), Free{context.device()}),
        row_loss(DType::fp32, Shape{n}) {
    fill_bytes(context, memory.get(), 0, n * v * 2);
    Buffer y(DType::int32, Shape{n});
    for (std::int64_t i = 0; i < n; ++i) {
      const bf16 logit = from_float<bf16>(static_cast<float>(target_logit(i)));
      copy_bytes(context, memory.get() + i * v + v - 1, context.device(), &logit, Device::cpu(), sizeof logit);
      y.set_index(0, i, v - 1);
    }
    Sums total(context);
    Scratch scratch(loss::cross_entropy_workspace_bytes(context, n));
    loss::CrossEntropyOptions options;
    options.reduction = loss::Reduction::sum;
    loss::cross_entropy_with_grad(context, Tensor(memory.get(), DType::bf16, {n, v}, context.device()), y, options,
                                  scratch.workspace, total.sums, {row_loss});
    sums = total.data();
  }
  // Columns first .. first + count of a row.
  std::vector<double> grad(std::int64_t row, std::int64_t first, std::int64_t count) const {
    std::vector<bf16> values(count);
    copy_bytes(context, values.data(), Device::cpu(), memory.get() + row * vocab + first, context.device(), 2 * count);
    context.synchronize();
    std::vector<double> wide;
    for (const bf16 value : values) wide.push_back(to_float(value));
    return wide;
  }
  double grad(std::int64_t row, std::int64_t column) const { return grad(row, column, 1)[0]; }
};

bool memory_lacks(std::int64_t bytes) {
  if (available_memory(test_device()) > bytes + (std::int64_t{1} << 30)) return false;
  MESSAGE("skipped: needs " << (bytes >> 30) + 1 << " GiB of free memory");
  return true;
}

// All logits 0 but the last row's target, 12.
void check_last_row(std::int64_t rows, std::int64_t vocab, double last_loss, double last_grad) {
  const LargeCall call(rows, vocab, [&](std::int64_t i) { return i == rows - 1 ? 12 : 0; });
  CHECK(std::fabs(call.row_loss[rows - 1] - last_loss) < 1e-5 * last_loss);
  CHECK(std::fabs(call.grad(rows - 1, vocab - 1) - last_grad) <= ulp(DType::bf16, last_grad));
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i + 1 < rows; ++i) {
    if (!(std::fabs(call.row_loss[i] - std::log(vocab)) < 1e-6 * std::log(vocab))) ++wrong;
    if (!(std::fabs(call.grad(i, i % (vocab - 1)) - 1.0 / vocab) <= ulp(DType::bf16, 1.0 / vocab))) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(call.sums.n_valid == rows);
}

// Rows told apart by z_y = i mod 7.
void check_rows(std::int64_t n, std::int64_t vocab, const std::vector<std::int64_t>& rows) {
  const LargeCall call(n, vocab, [](std::int64_t i) { return static_cast<double>(i % 7); });
  for (const std::int64_t i : rows) {
    CAPTURE(i);
    std::vector<double> logits(vocab, 0);
    logits[vocab - 1] = static_cast<double>(i % 7);
    const auto want = reference::cross_entropy_row(logits, vocab - 1, {});
    CHECK(std::fabs(call.row_loss[i] - want.loss) <= 1e-5 * want.loss);
    const std::vector<double> grad = call.grad(i, 0, vocab);
    std::int64_t wrong = 0;
    for (std::int64_t j = 0; j < vocab; ++j) {
      if (!(std::fabs(grad[j] - want.grad[j]) <= ulp(DType::bf16, want.grad[j]))) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("cross_entropy: the last row of 16385 is like that of many (twin of 2^31 logits)") {
  const double z = std::log1p(127 * std::exp(-12.0));
  check_last_row(16385, 128, z, -127 * std::exp(-12.0) / (1 + 127 * std::exp(-12.0)));
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: rows told apart (twin of 2^32 logits)") {
  check_rows(32769, 128, {0, 16383, 32767, 32768});
}

SLOW_TEST_CASE_ON_EACH_BACKEND("cross_entropy: more than 2^31 logits") {
  const std::int64_t rows = 16385, vocab = 131072;
  if (memory_lacks(rows * vocab * 2)) return;
  check_last_row(rows, vocab, 0.590742, -0.446084);
}

SLOW_TEST_CASE_ON_EACH_BACKEND("cross_entropy: more than 2^32 logits") {
  const std::int64_t rows = 32769, vocab = 131072;
  if (memory_lacks(rows * vocab * 2)) return;
  check_rows(rows, vocab, {0, 16383, 32767, 32768});
}
