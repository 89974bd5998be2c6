// Attention on CUDA against fp64 and against the CPU. bf16 heads that can be read 16 bytes at a time take the kernels
// on tensor cores, on Hopper those of warpgroups where nothing is dropped, everything else the plain ones: one is the
// other's oracle where the CPU would be slow. cuda_attention_kernels.cpp looks at which ones they are.
#include <greyhound/kernels/attention.h>
#include <tests/cuda_support.h>
#include <tests/differences.h>
#include <tests/reference/attention.h>

#include <limits>
#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;
using reference::AttentionShape;

namespace {

const Dropout some_dropout{0.3f, 77, 1000};

// The rule of the header, written out word by word.
double dropout_factor(const Dropout& dropout, std::int64_t row, std::int64_t head, std::int64_t key) {
  if (dropout.probability == 0) return 1;
  const Philox philox{dropout.key};
  const std::uint64_t low = static_cast<std::uint64_t>(head) << 32 | static_cast<std::uint64_t>(key / 4);
  const auto words = philox(low, dropout.first_row + static_cast<std::uint64_t>(row));
  const bool kept = uniform(words[static_cast<std::size_t>(key % 4)]) >= dropout.probability;
  return kept ? 1.0 / (1.0 - static_cast<double>(dropout.probability)) : 0.0;
}

// `gap` elements between rows and `offset` before the first: with multiples of 8, bf16 takes tensor cores.
struct Inputs {
  Inputs(const AttentionShape& shape, DType dtype, std::int64_t gap = 0, std::int64_t offset = 0)
      : shape(shape),
        gap(gap),
        out_gap(gap),
        offset(offset),
        qkv(HostTensor::random(dtype, {shape.batch * shape.tokens, 3 * shape.channels}, 11, -2, 2,
                               3 * shape.channels + gap, offset)),
        grad_out(HostTensor::random(dtype, {shape.batch * shape.tokens, shape.channels}, 12, -2, 2,
                                    shape.channels + 2 * gap, offset)) {}
  AttentionShape shape;
  std::int64_t gap, out_gap, offset;
  HostTensor qkv, grad_out;
};

struct Outputs {
  HostTensor out, lse, grad_qkv;
  bool same_bits(const Outputs& other) const {
    return out.bytes() == other.out.bytes() && lse.bytes() == other.lse.bytes() &&
           grad_qkv.bytes() == other.grad_qkv.bytes();
  }
};

Outputs run(const Context& context, const Inputs& in, const Dropout& dropout) {
  const AttentionShape& shape = in.shape;
  const DType dtype = in.qkv.dtype();
  const std::int64_t rows = shape.batch * shape.tokens;
  const Placed qkv(context, in.qkv), grad_out(context, in.grad_out),
      out(context, HostTensor(dtype, {rows, shape.channels}, shape.channels + in.out_gap, in.offset)),
      lse(context, HostTensor(DType::fp32, {shape.batch, shape.heads, shape.tokens})),
      grad_qkv(context, HostTensor(dtype, {rows, 3 * shape.channels}, 3 * shape.channels + 3 * in.gap, in.offset));
  GuardedWorkspace memory(
      context, attention_workspace_bytes(context, dtype, shape.batch, shape.tokens, shape.channels, shape.heads));
  attention_forward(context, {qkv, out, lse, shape.batch, shape.heads, dropout}, memory.workspace);
  attention_backward(context, {grad_out, qkv, out, lse, grad_qkv, shape.batch, shape.heads, dropout}, memory.workspace);
  context.synchronize();
  CHECK(memory.workspace.used() == 0);
  CHECK(memory.intact());
  Outputs results{out.back(), lse.back(), grad_qkv.back()};
  CHECK(results.out.intact());
  CHECK(results.lse.intact());
  CHECK(results.grad_qkv.intact());
  return results;
}

// |got - exact| <= relative * bound + half a unit in the last place of the dtype, element by element, and on average
// less than half of that.
void check_bounded(const char* what, const HostTensor& got, const std::vector<double>& exact,
                   const std::vector<double>& bound, double relative) {
  REQUIRE(got.shape().elements() == static_cast<std::int64_t>(exact.size()));
  std::int64_t wrong = 0, first_wrong = -1;
  double worst = 0, squares = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double allowed =
        relative * bound[i] + (got.dtype() == DType::fp32 ? 0 : 0.51 * ulp(got.dtype(), exact[i])) + 1e-30;
    const double ratio = std::fabs(got.get(static_cast<std::int64_t>(i)) - exact[i]) / allowed;
    if (!(ratio <= 1) && wrong++ == 0) first_wrong = static_cast<std::int64_t>(i);
    worst = std::max(worst, ratio);
    squares += ratio * ratio;
  }
  CAPTURE(std::string(what));
  CAPTURE(worst);
  CAPTURE(first_wrong);
  CHECK(wrong == 0);
  const double mean = std::sqrt(squares / static_cast<double>(exact.size()));
  CHECK(mean < 0.5);
}

void check_against_reference(const AttentionShape& shape, DType dtype, const Dropout& dropout = {},
                             std::int64_t gap = 0, std::int64_t offset = 0) {
  const std::string what = concat(name_of(dtype), " B ", shape.batch, " T ", shape.tokens, " C ", shape.channels,
                                  " heads ", shape.heads, " dropout ", dropout.probability, " gap ", gap);
  CAPTURE(what);
  const Inputs in(shape, dtype, gap, offset);
  const Outputs got = run(device_context(), in, dropout);
  const auto factor = [&](std::int64_t row, std::int64_t head, std::int64_t key) {
    return dropout_factor(dropout, row, head, key);
  };
  const reference::Attention exact = reference::attention(in.qkv.values(), in.grad_out.values(), shape, factor);
  // Scores of up to 4 sqrt(size) in fp32 give weights with that many units of error. On tensor cores weights, and in
  // backward their gradients, are rounded to bf16; and backward sees forward's rounded output in sum(grad_out * out).
  const double relative = 64 * 0x1p-24 * std::sqrt(static_cast<double>(shape.size()));
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0;
  check_bounded("out", got.out, exact.out, exact.out_bound, relative + rounding);
  check_bounded("lse", got.lse, exact.lse, std::vector<double>(exact.lse.size(), 10.0),
                dtype == DType::bf16 ? 0x1p-18 : 0x1p-20);
  check_bounded("grad_qkv", got.grad_qkv, exact.grad_qkv, exact.grad_bound, relative + 2 * rounding);
}

// Largest difference relative to the largest value.
double difference(const HostTensor& a, const HostTensor& b) {
  return test::largest_difference(a.values(), b.values()) / test::largest_magnitude(b.values());
}

void check_close(const Outputs& got, const Outputs& expected, double tolerance) {
  CHECK(difference(got.out, expected.out) <= tolerance);
  CHECK(difference(got.lse, expected.lse) <= std::min(tolerance, 1e-4));
  CHECK(difference(got.grad_qkv, expected.grad_qkv) <= tolerance);
}

}  // namespace

TEST_CASE("attention on CUDA: sequence lengths around the tiles' edges against fp64" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (std::int64_t tokens : {1, 2, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      check_against_reference({2, tokens, 128, 2}, dtype);
      check_against_reference({1, tokens, 128, 1}, dtype);
      check_against_reference({1, tokens, 192, 3}, dtype, some_dropout, 8);
    }
  }
}

TEST_CASE("attention on CUDA: head sizes against fp64" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (std::int64_t size : {1, 5, 8, 16, 32, 33, 64, 72, 80, 96, 127, 128}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      for (const Dropout& dropout : {Dropout{}, some_dropout}) {
        check_against_reference({2, 130, 2 * size, 2}, dtype, dropout, 8, 8);
        check_against_reference({1, 70, 2 * size, 2}, dtype, dropout, 3, 1);  // rows of no alignment
      }
    }
  }
}

TEST_CASE("attention on CUDA: long sequences against fp64" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  check_against_reference({1, 1000, 64, 1}, DType::fp32);
  check_against_reference({1, 1024, 40, 1}, DType::fp32, some_dropout);
  check_against_reference({1, 1000, 64, 1}, DType::bf16, some_dropout);
  check_against_reference({2, 1000, 128, 2}, DType::bf16, {}, 8, 8);
  check_against_reference({1, 1000, 256, 2}, DType::bf16);
  check_against_reference({1, 1024, 64, 1}, DType::bf16);
  check_against_reference({1, 1024, 128, 1}, DType::bf16);
  check_against_reference({1, 2048, 64, 1}, DType::bf16);
  check_against_reference({1, 2048, 128, 1}, DType::bf16);
}

TEST_CASE("attention on CUDA: agrees with the CPU" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const AttentionShape& shape : {AttentionShape{3, 300, 192, 3}, AttentionShape{2, 257, 160, 2}}) {
      for (const Dropout& dropout : {Dropout{}, some_dropout}) {
        const Inputs in(shape, dtype);
        check_close(run(device_context(), in, dropout), run(Context::cpu(), in, dropout),
                    dtype == DType::bf16 ? 0x1p-7 : 3e-5);
      }
    }
  }
}

TEST_CASE("attention on CUDA: tensor cores agree with the plain kernels over many heads" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const AttentionShape& shape : {AttentionShape{2, 1024, 2048, 16}, AttentionShape{5, 520, 768, 12}}) {
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      const Inputs packed(shape, DType::bf16), odd(shape, DType::bf16, 1);
      Inputs odd_out = packed;  // backward still has tiles of everything else
      odd_out.out_gap = 1;
      const Outputs expected = run(device_context(), odd, dropout);
      check_close(run(device_context(), packed, dropout), expected, 0x1p-7);
      check_close(run(device_context(), odd_out, dropout), expected, 0x1p-7);
    }
  }
}

TEST_CASE("attention on CUDA: the same bits over blocks that share multiprocessors" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const AttentionShape& shape : {AttentionShape{4, 1000, 768, 12}, AttentionShape{3, 1024, 1024, 8}}) {
    const Inputs in(shape, DType::bf16);
    const Outputs first = run(device_context(), in, {});
    for (int repeat = 0; repeat < 3; ++repeat) CHECK(run(device_context(), in, {}).same_bits(first));
  }
}

TEST_CASE("attention on CUDA: the same bits in every run, with and without lse" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const AttentionShape shape{4, 333, 256, 4};
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      const Inputs in(shape, dtype);
      const Context context = device_context();
      const Outputs first = run(context, in, dropout);
      for (int repeat = 0; repeat < 3; ++repeat) CHECK(run(context, in, dropout).same_bits(first));

      const Placed qkv(context, in.qkv), out(context, HostTensor(dtype, {4 * 333, 256}));
      GuardedWorkspace memory(context, attention_workspace_bytes(context, dtype, 4, 333, 256, 4));
      attention_forward(context, {qkv, out, {}, 4, 4, dropout}, memory.workspace);
      CHECK(out.back().bytes() == first.out.bytes());
    }
  }
}

TEST_CASE("attention on CUDA: what is not finite stays where causality allows it" * doctest::test_suite("cuda")) {
  if (!have_device() || test::cpu_as_device()) return;  // the CPU promises it for keys only
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (std::int64_t size : {64, 128, 33}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      for (std::int64_t position : {5, 16, 31, 66, 127, 139}) {
        CAPTURE(size);
        CAPTURE(position);
        const std::int64_t tokens = 140, channels = 2 * size;
        Inputs clean({1, tokens, channels, 2}, dtype), in = clean;
        for (std::int64_t c = channels; c < 3 * channels; ++c) {
          in.qkv.set(position * 3 * channels + c, c % 2 == 0 ? nan : infinity);
        }
        const Outputs got = run(device_context(), in, {}), expected = run(device_context(), clean, {});
        std::int64_t wrong = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t c = 0; c < channels; ++c) {
            const double out = got.out.get(t * channels + c);
            const double grad = got.grad_qkv.get(t * 3 * channels + c);
            if (t < position) {
              // Close, not equal: these rows may be summed in another way.
              wrong += !(std::fabs(out - expected.out.get(t * channels + c)) <= 0.02);
              wrong += !std::isfinite(grad);
            } else {
              wrong += !std::isnan(out);
            }
          }
        }
        CHECK(wrong == 0);
      }
    }
  }

  // A later value whose product with an earlier grad_out overflows: the earlier queries of its tile do not see it.
  for (DType dtype : {DType::fp32, DType::bf16}) {
    Inputs later({1, 70, 128, 2}, dtype);
    later.qkv.set(66 * 384 + 256 + 5, 3e38);
    for (std::int64_t t = 64; t < 66; ++t) later.grad_out.set(t * 128 + 5, 1e5);
    const Outputs got = run(device_context(), later, {});
    std::int64_t wrong = 0;
    for (std::int64_t t = 0; t < 66; ++t) {
      for (std::int64_t c = 0; c < 128; ++c) wrong += !std::isfinite(got.grad_qkv.get(t * 384 + c));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("attention on CUDA: large scores" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const AttentionShape shape{1, 150, 128, 2};
  for (DType dtype : {DType::fp32, DType::bf16}) {
    Inputs in(shape, dtype);
    in.qkv = HostTensor::random(dtype, {150, 384}, 5, -60, 60);  // scores of thousands: one weight is all
    const Outputs got = run(device_context(), in, {});
    const auto exact = reference::attention(in.qkv.values(), in.grad_out.values(), shape,
                                            [](std::int64_t, std::int64_t, std::int64_t) { return 1.0; });
    check_bounded("out", got.out, exact.out, exact.out_bound, 0.02);
  }
}

TEST_CASE("attention_decode on CUDA: position after position gives forward's rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  for (std::int64_t size : {5, 64, 80, 128}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(size);
      const std::int64_t batch = 2, heads = 2, channels = heads * size, tokens = 300, most = 305;
      const Inputs in({batch, tokens, channels, heads}, dtype);
      const Outputs all = run(Context::cpu(), in, {});
      const Placed keys(context, HostTensor(dtype, {batch, most, channels})),
          values(context, HostTensor(dtype, {batch, most, channels}));
      HostTensor row(dtype, {batch, 3 * channels});
      GuardedWorkspace memory(context, attention_workspace_bytes(context, dtype, batch, most, channels, heads));
      std::int64_t wrong = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t b = 0; b < batch; ++b) {
          for (std::int64_t c = 0; c < 3 * channels; ++c) {
            row.set(b * 3 * channels + c, in.qkv.get((b * tokens + t) * 3 * channels + c));
          }
        }
        const Placed qkv(context, row), out(context, HostTensor(dtype, {batch, channels}));
        attention_decode(context, {qkv, keys, values, out, heads, t}, memory.workspace);
        const HostTensor got = out.back();
        for (std::int64_t i = 0; i < batch * channels; ++i) {
          const double expected = all.out.get((i / channels * tokens + t) * channels + i % channels);
          wrong += !(std::fabs(got.get(i) - expected) <= 2e-5 + (dtype == DType::bf16 ? ulp(dtype, expected) : 0));
        }
        if (!got.intact()) ++wrong;
      }
      CHECK(wrong == 0);
      CHECK(memory.intact());
      const HostTensor stored_keys = keys.back(), stored_values = values.back();
      CHECK(stored_keys.intact());
      CHECK(stored_values.intact());
      std::int64_t unlike = 0;
      for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t i = 0; i < tokens * channels; ++i) {
          const std::int64_t from = (b * tokens + i / channels) * 3 * channels + i % channels;
          unlike += stored_keys.get(b * most * channels + i) != in.qkv.get(from + channels);
          unlike += stored_values.get(b * most * channels + i) != in.qkv.get(from + 2 * channels);
        }
      }
      CHECK(unlike == 0);
    }
  }
}

TEST_CASE("attention on CUDA: heads that are too wide are named" * doctest::test_suite("cuda")) {
  if (!have_device() || test::cpu_as_device()) return;
  const Inputs in({1, 3, 129, 1}, DType::fp32);
  std::string message = "no error";
  try {
    run(device_context(), in, {});
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message == "attention: heads of at most 128 channels on CUDA, got 129");
}
