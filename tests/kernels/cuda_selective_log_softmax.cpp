// The CUDA kernel of selective log-softmax against the CPU's.
#include <greyhound/kernels/selective_log_softmax.h>
#include <tests/cuda_support.h>

#include <string>

#include <limits>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Case {
  DType dtype = DType::bf16, out_dtype = DType::fp32, index_dtype = DType::int64;
  std::int64_t rows = 6, vocab = 33, per_row = 0;  // per_row 0: index [N]
  std::int64_t columns = 40, stride = 43, offset = 1;
  double softcap = 0, scale = 1;
};

struct Result {
  HostTensor out, lse;
  ErrorWord errors{};
};

Result run(const Context& context, const Case& c) {
  HostTensor logits = HostTensor::random(c.dtype, {c.rows, c.columns}, 21, -6, 6, c.stride, c.offset);
  const double infinity = std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < c.columns; ++j) logits.set(5 * c.columns + j, -infinity);
  logits.set(4 * c.columns, 30);  // a confident row: log-probabilities far below the rounding of 1
  const HostTensor index = hard_indices(c.index_dtype, c.rows, c.per_row, c.vocab);
  const Placed device_logits(context, logits), device_index(context, index),
      out(context, HostTensor(c.out_dtype, index.shape())), lse(context, HostTensor(DType::fp32, {c.rows}));
  const DeviceMemory errors(context, sizeof(ErrorWord), 0);
  SelectiveLogSoftmax args;
  args.logits = device_logits;
  args.index = device_index;
  args.out = out;
  args.lse = lse;
  args.vocab = c.vocab;
  args.softcap = static_cast<float>(c.softcap);
  args.logit_scale = static_cast<float>(c.scale);
  args.errors = static_cast<ErrorWord*>(errors.data());
  selective_log_softmax_rows(context, args);
  context.synchronize();
  Result result{out.back(), lse.back()};
  std::memcpy(&result.errors, errors.download().data(), sizeof result.errors);
  return result;
}

void compare(const Case& c) {
  CAPTURE(std::string(name_of(c.dtype)));
  CAPTURE(std::string(name_of(c.out_dtype)));
  CAPTURE(c.vocab);
  CAPTURE(c.per_row);
  const Result expected = run(Context::cpu(), c), got = run(device_context(), c);
  check_agree("out", got.out, expected.out, 1e-5, 1e-6);
  check_agree("lse", got.lse, expected.lse, 1e-5, 1e-6);
  CHECK(got.errors.count == expected.errors.count);
  CHECK(got.errors.first_row == expected.errors.first_row);
  CHECK(got.errors.value == expected.errors.value);
  for (double value : got.out.values()) CHECK_FALSE(value > 0);
}

}  // namespace

TEST_CASE("selective_log_softmax: CUDA agrees with the CPU" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (DType out_dtype : {DType::fp32, dtype}) {
      for (std::int64_t per_row : {0, 1, 3, 5}) {
        for (double softcap : {0.0, 8.0}) {
          Case c;
          c.dtype = dtype;
          c.out_dtype = out_dtype;
          c.index_dtype = per_row % 2 == 0 ? DType::int64 : DType::int32;
          c.per_row = per_row;
          c.softcap = softcap;
          c.scale = softcap > 0 ? 0.5 : 1;
          compare(c);
        }
      }
    }
  }
}

TEST_CASE("selective_log_softmax: CUDA at large and odd vocabularies" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (std::int64_t vocab : {50257, 128256, 200064, 262144}) {
    Case c;
    c.vocab = vocab;
    c.columns = c.stride = vocab;
    c.offset = 0;
    compare(c);
  }
}
