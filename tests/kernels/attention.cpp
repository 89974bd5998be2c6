#include <greyhound/kernels/attention.h>

#include <doctest/doctest.h>
#include <greyhound/tests/kernels/buffers.h>
#include <greyhound/tests/reference/attention.h>

#include <limits>
#include <string>

using namespace greyhound;
using namespace greyhound::testing;
using reference::AttentionShape;

namespace {

// The rule of the header, written out word by word.
double dropout_factor(const Dropout& dropout, std::int64_t row, std::int64_t head, std::int64_t key) {
  if (dropout.probability == 0) return 1;
  const Philox philox{dropout.key};
  const std::uint64_t low = static_cast<std::uint64_t>(head) << 32 | static_cast<std::uint64_t>(key / 4);
  const auto words = philox(low, dropout.first_row + static_cast<std::uint64_t>(row));
  const bool kept = uniform(words[static_cast<std::size_t>(key % 4)]) >= dropout.probability;
  return kept ? 1.0 / (1.0 - static_cast<double>(dropout.probability)) : 0.0;
}

struct Run {
  Run(const AttentionShape& shape, DType dtype, std::int64_t gap = 0, double spread = 2)
      : qkv(dtype, shape.batch * shape.tokens, 3 * shape.channels,
            random_values(shape.batch * shape.tokens * 3 * shape.channels, 11, -spread, spread),
            3 * shape.channels + gap),
        grad_out(dtype, shape.batch * shape.tokens, shape.channels,
                 random_values(shape.batch * shape.tokens * shape.channels, 12), shape.channels + 2 * gap),
        out(dtype, shape.batch * shape.tokens, shape.channels, shape.channels + gap),
        lse(DType::fp32, shape.batch * shape.heads, shape.tokens),
        grad_qkv(dtype, shape.batch * shape.tokens, 3 * shape.channels, 3 * shape.channels + 3 * gap) {}
  Buffer qkv, grad_out, out, lse, grad_qkv;
};

void run(const Context& context, const AttentionShape& shape, const Dropout& dropout, Run& r) {
  const Tensor lse = r.lse.vector().reshape({shape.batch, shape.heads, shape.tokens});
  ExactWorkspace memory(
      attention_workspace_bytes(context, r.qkv.dtype(), shape.batch, shape.tokens, shape.channels, shape.heads));
  Workspace workspace = memory.workspace();
  attention_forward(context, {r.qkv.tensor(), r.out.tensor(), lse, shape.batch, shape.heads, dropout}, workspace);
  attention_backward(context,
                     {r.grad_out.tensor(), r.qkv.tensor(), r.out.tensor(), lse, r.grad_qkv.tensor(), shape.batch,
                      shape.heads, dropout},
                     workspace);
  CHECK(workspace.used() == 0);
  CHECK(memory.intact());
  CHECK(r.out.intact());
  CHECK(r.lse.intact());
  CHECK(r.grad_qkv.intact());
}

// |got - exact| <= relative * bound + half a unit in the last place of the dtype, element by element.
void check_bounded(const char* what, const Buffer& got, const std::vector<double>& exact,
                   const std::vector<double>& bound, double relative) {
  const std::vector<double> values = got.values();
  REQUIRE(values.size() == exact.size());
  std::int64_t wrong = 0;
  double worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double allowed = relative * bound[i] + 0.51 * ulp(got.dtype(), exact[i]);
    const double error = std::fabs(values[i] - exact[i]);
    if (!(error <= allowed)) ++wrong;
    worst = std::max(worst, error / allowed);
  }
  CAPTURE(std::string(what));
  CAPTURE(worst);
  CHECK(wrong == 0);
}

void check_against_reference(const AttentionShape& shape, DType dtype, const Dropout& dropout = {},
                             std::int64_t gap = 0) {
  const std::string what = concat(name_of(dtype), " B ", shape.batch, " T ", shape.tokens, " C ", shape.channels,
                                  " heads ", shape.heads, " dropout ", dropout.probability);
  CAPTURE(what);
  Run r(shape, dtype, gap);
  run(Context::cpu(2), shape, dropout, r);
  const auto factor = [&](std::int64_t row, std::int64_t head, std::int64_t key) {
    return dropout_factor(dropout, row, head, key);
  };
  const reference::Attention exact = reference::attention(r.qkv.values(), r.grad_out.values(), shape, factor);
  // Scores of up to 4 sqrt(size) in fp32 give weights with that many units of error; backward with bf16 also sees
  // forward's rounded output, through sum(grad_out * out).
  const double relative = 64 * 0x1p-24 * std::sqrt(static_cast<double>(shape.size()));
  check_bounded("out", r.out, exact.out, exact.out_bound, relative);
  check_bounded("lse", r.lse, exact.lse, std::vector<double>(exact.lse.size(), 10.0), 0x1p-22);
  check_bounded("grad_qkv", r.grad_qkv, exact.grad_qkv, exact.grad_bound,
                relative + (dtype == DType::bf16 ? 0x1p-9 : 0));
}

std::vector<unsigned char> bytes_after(const Context& context, const AttentionShape& shape, DType dtype,
                                       const Dropout& dropout) {
  Run r(shape, dtype);
  run(context, shape, dropout, r);
  std::vector<unsigned char> bytes = r.out.bytes();
  bytes.insert(bytes.end(), r.lse.bytes().begin(), r.lse.bytes().end());
  bytes.insert(bytes.end(), r.grad_qkv.bytes().begin(), r.grad_qkv.bytes().end());
  return bytes;
}

const Dropout some_dropout{0.3f, 77, 1000};

}  // namespace

TEST_CASE("attention: sequence lengths around the tiles' edges against fp64") {
  for (std::int64_t tokens : {1, 2, 5, 17, 63, 64, 65, 127, 129}) {
    check_against_reference({2, tokens, 12, 3}, DType::fp32);
    check_against_reference({1, tokens, 32, 2}, DType::bf16);
    check_against_reference({1, tokens, 12, 3}, DType::fp32, some_dropout);
    check_against_reference({5, tokens, 24, 4}, DType::fp32);  // enough heads for one task each
  }
}

TEST_CASE("attention: head sizes against fp64") {
  for (std::int64_t size : {1, 4, 7, 16, 31, 32, 33, 64, 80, 128, 131, 200}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      check_against_reference({1, 70, 2 * size, 2}, dtype, {}, 3);
      check_against_reference({4, 33, 4 * size, 4}, dtype, some_dropout, 1);
    }
  }
}

TEST_CASE("attention: T = 1000" * doctest::test_suite("slow")) {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    check_against_reference({1, 1000, 128, 2}, dtype);
    check_against_reference({2, 1000, 256, 8}, dtype, some_dropout);
  }
}

TEST_CASE("attention: the same bits for any number of threads") {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const AttentionShape& shape : {AttentionShape{1, 200, 24, 3}, AttentionShape{4, 100, 32, 4}}) {
      for (const Dropout& dropout : {Dropout{}, some_dropout}) {
        check_same_bits_for_all_threads(
            [&](const Context& context) { return bytes_after(context, shape, dtype, dropout); });
      }
    }
  }
}

TEST_CASE("attention: a sequence does not depend on what stands beside it in the batch") {
  const AttentionShape both{2, 37, 24, 3}, one{1, 37, 24, 3};
  Run all(both, DType::fp32), second(one, DType::fp32);
  for (std::int64_t t = 0; t < one.tokens; ++t) {
    for (std::int64_t c = 0; c < 3 * one.channels; ++c) second.qkv.set(t, c, all.qkv.get(37 + t, c));
    for (std::int64_t c = 0; c < one.channels; ++c) second.grad_out.set(t, c, all.grad_out.get(37 + t, c));
  }
  Dropout dropout = some_dropout;
  run(Context::cpu(1), both, dropout, all);
  dropout.first_row += 37;  // its rows keep their global numbers
  run(Context::cpu(1), one, dropout, second);
  for (std::int64_t t = 0; t < one.tokens; ++t) {
    for (std::int64_t c = 0; c < one.channels; ++c) CHECK(second.out.get(t, c) == all.out.get(37 + t, c));
    for (std::int64_t c = 0; c < 3 * one.channels; ++c) CHECK(second.grad_qkv.get(t, c) == all.grad_qkv.get(37 + t, c));
  }
}

TEST_CASE("attention: large scores, and a NaN that stays where causality allows it") {
  const AttentionShape shape{1, 70, 8, 2};
  Run large(shape, DType::fp32, 0, 200);  // scores of tens of thousands
  run(Context::cpu(1), shape, {}, large);
  const auto exact = reference::attention(large.qkv.values(), large.grad_out.values(), shape,
                                          [](std::int64_t, std::int64_t, std::int64_t) { return 1.0; });
  for (std::int64_t e = 0; e < 70 * 8; ++e) {
    CHECK(std::fabs(large.out.get(e / 8, e % 8) - exact.out[e]) <= 0.01 * exact.out_bound[e] + 1e-6);
  }

  Run r(shape, DType::fp32);
  r.qkv.set(66, 8 + 5, std::numeric_limits<double>::quiet_NaN());  // a key of the second head
  run(Context::cpu(1), shape, {}, r);
  for (std::int64_t t = 0; t < 70; ++t) {
    for (std::int64_t c = 0; c < 8; ++c) CHECK(std::isnan(r.out.get(t, c)) == (t >= 66 && c >= 4));
  }

  // A later value whose product with an earlier grad_out overflows: the earlier queries of its tile do not see it.
  Run later(shape, DType::fp32);
  later.qkv.set(66, 16 + 5, 3e38);
  for (std::int64_t t = 64; t < 66; ++t) later.grad_out.set(t, 5, 1e5);
  run(Context::cpu(1), shape, {}, later);
  for (std::int64_t t = 0; t < 66; ++t) {
    for (std::int64_t c = 0; c < 8; ++c) CHECK(std::isfinite(later.grad_qkv.get(t, c)));
  }
}

TEST_CASE("attention: the reference's gradient agrees with finite differences") {
  const AttentionShape shape{1, 5, 6, 2};
  const Dropout dropout{0.25f, 5, 3};
  const auto factor = [&](std::int64_t row, std::int64_t head, std::int64_t key) {
    return dropout_factor(dropout, row, head, key);
  };
  std::vector<double> qkv = random_values(5 * 18, 1);
  const std::vector<double> grad_out = random_values(5 * 6, 2);
  const auto loss = [&] {
    const reference::Attention result = reference::attention(qkv, {}, shape, factor);
    double sum = 0;
    for (std::size_t e = 0; e < grad_out.size(); ++e) sum += grad_out[e] * result.out[e];
    return sum;
  };
  const reference::Attention exact = reference::attention(qkv, grad_out, shape, factor);
  for (std::size_t e = 0; e < qkv.size(); ++e) {
    const double value = qkv[e], h = 1e-5;
    qkv[e] = value + h;
    const double above = loss();
    qkv[e] = value - h;
    const double below = loss();
    qkv[e] = value;
    CHECK(std::fabs((above - below) / (2 * h) - exact.grad_qkv[e]) < 1e-8);
  }
}

TEST_CASE("attention_decode: position after position gives forward's rows") {
  for (std::int64_t size : {5, 64, 150}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      const AttentionShape shape{2, 70, 2 * size, 2};
      CAPTURE(size);
      Run r(shape, dtype);
      run(Context::cpu(2), shape, {}, r);
      Buffer keys(dtype, 2 * 75, shape.channels), values(dtype, 2 * 75, shape.channels),
          row(dtype, 2, 3 * shape.channels);
      std::int64_t wrong = 0;
      for (std::int64_t t = 0; t < shape.tokens; ++t) {
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t c = 0; c < 3 * shape.channels; ++c) row.set(b, c, r.qkv.get(b * 70 + t, c));
        }
        Buffer out(dtype, 2, shape.channels);
        Workspace none;
        attention_decode(Context::cpu(2),
                         {row.tensor(), keys.vector().reshape({2, 75, shape.channels}),
                          values.vector().reshape({2, 75, shape.channels}), out.tensor(), shape.heads, t},
                         none);
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t c = 0; c < shape.channels; ++c) {
            const double expected = r.out.get(b * 70 + t, c);
            wrong += !(std::fabs(out.get(b, c) - expected) <= 2e-5 + (dtype == DType::bf16 ? ulp(dtype, expected) : 0));
          }
        }
        CHECK(out.intact());
      }
      CHECK(wrong == 0);
      CHECK(keys.intact());
      CHECK(values.intact());
    }
  }
}

TEST_CASE("attention: mistakes of the caller are named") {
  const AttentionShape shape{2, 4, 6, 3};
  auto message = [&](auto&& change) {
    Run r(shape, DType::fp32);
    AttentionForward args{r.qkv.tensor(), r.out.tensor(), {}, 2, 3, {}};
    change(args);
    Workspace none;
    try {
      attention_forward(Context::cpu(1), args, none);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(message([](AttentionForward& args) { args.heads = 4; }) ==
        "attention_forward: 6 channels do not divide among 4 heads");
  CHECK(message([](AttentionForward& args) { args.batch = 3; }) ==
        "attention_forward: 8 rows do not divide among a batch of 3");
  CHECK(message([](AttentionForward& args) { args.qkv.shape = Shape{8, 17}; }).find("[8, 18]") != std::string::npos);
  CHECK(message([](AttentionForward& args) { args.qkv.dtype = DType::fp16; }).find("fp16") != std::string::npos);
  CHECK(message([](AttentionForward& args) { args.dropout.probability = 1; }).find("probability") != std::string::npos);
  CHECK(message([](AttentionForward&) {}).find("workspace") != std::string::npos);
}
