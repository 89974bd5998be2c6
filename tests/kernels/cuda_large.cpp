// More logits than 32 bits can count.
#include <greyhound/kernels/cross_entropy.h>
#include <tests/cuda_support.h>

#include <cmath>

using namespace greyhound;
using namespace greyhound::cuda_test;

TEST_CASE("cross_entropy_rows on CUDA: more than 2^32 logits" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  const std::int64_t rows = 32769, vocab = 131072;
  const std::size_t row_bytes = static_cast<std::size_t>(vocab) * sizeof(bf16);
  if (available_memory(context.device()) < static_cast<std::int64_t>(rows * row_bytes) + (1 << 30)) {
    MESSAGE("skipped: 10 GB of device memory are not free");
    return;
  }
  // Rows of zeros, told apart by the target's logit.
  const DeviceMemory memory(context, rows * row_bytes, 0);
  HostTensor index(DType::int64, {rows});
  const auto target = [&](std::int64_t row) { return row * 31 % vocab; };
  for (std::int64_t row = 0; row < rows; ++row) {
    index.set_index(row, target(row));
    const bf16 logit = from_float<bf16>(static_cast<float>(row % 7));
    copy_bytes(context, static_cast<bf16*>(memory.data()) + row * vocab + target(row), context.device(), &logit,
               Device::cpu(), sizeof logit);
  }
  const HostTensor per_row(DType::fp32, {rows});
  const Placed device_index(context, index), ce(context, per_row), z(context, per_row), loss(context, per_row);
  CrossEntropyRows args;
  args.logits = Tensor(memory.data(), DType::bf16, {rows, vocab}, context.device());
  args.targets = {device_index, vocab, -100};
  args.grad = Tensor(memory.data(), DType::bf16, {rows, vocab}, context.device());
  args.row_ce = ce;
  args.row_z = z;
  args.loss = loss;
  cross_entropy_rows(context, args);

  const HostTensor losses = loss.back();
  std::vector<bf16> grad(static_cast<std::size_t>(vocab));
  for (std::int64_t row : {std::int64_t{0}, std::int64_t{16383}, std::int64_t{16384}, rows - 2, rows - 1}) {
    CAPTURE(row);
    const double logit = static_cast<double>(row % 7), sum = static_cast<double>(vocab - 1) + std::exp(logit);
    CHECK(agree(DType::fp32, losses.get(row), std::log(sum) - logit, 1e-6, 0));
    copy_bytes(context, grad.data(), Device::cpu(), static_cast<bf16*>(memory.data()) + row * vocab, context.device(),
               row_bytes);
    context.synchronize();
    std::int64_t wrong = 0;
    for (std::int64_t j = 0; j < vocab; ++j) {
      const double want = j == target(row) ? std::exp(logit) / sum - 1 : 1 / sum;
      if (!agree(DType::bf16, to_float(grad[static_cast<std::size_t>(j)]), want, 1e-6, 0)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}
