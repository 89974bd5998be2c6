// The embedding on CUDA against the CPU.
#include <greyhound/kernels/embedding.h>
#include <tests/cuda_support.h>

#include <cstdint>
#include <functional>
#include <limits>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Case {
  std::int64_t batch, tokens, channels, vocab, padded_vocab, positions;
  std::int64_t gap = 0, offset = 0;
};

const std::vector<Case> cases = {{1, 1, 1, 1, 1, 1},
                                 {1, 2, 3, 7, 8, 6},
                                 {3, 17, 17, 2100, 2112, 17, 3, 1},
                                 {1, 127, 64, 513, 520, 127},
                                 {4, 33, 100, 5, 5, 40},
                                 {5, 101, 768, 300, 304, 128},
                                 {2, 64, 1600, 600, 608, 64},
                                 {2, 64, 3, 50257, 50304, 64},
                                 {4, 31, 1600, 40, 40, 31, 1, 0},
                                 {70, 65, 1, 300000, 300000, 65},
                                 {300, 1001, 1, 300, 300, 1001}};

enum class Draw { uniform, frequent, one, bad };

// Token numbers: evenly over the vocabulary; most of them one token; all of them the last one; some outside.
HostTensor make_tokens(const Case& c, Draw draw) {
  HostTensor tokens(DType::int32, {c.batch, c.tokens});
  const Philox philox{mix_key(41, 0)};
  for (std::int64_t i = 0; i < c.batch * c.tokens; ++i) {
    const Philox::Block words = philox(static_cast<std::uint64_t>(i), 0);
    std::int64_t token = static_cast<std::int64_t>(uniform(words[0]) * static_cast<float>(c.vocab));
    if (token >= c.vocab) token = c.vocab - 1;
    if (draw == Draw::one || (draw == Draw::frequent && words[1] % 3 != 0)) token = c.vocab - 1;
    if (draw == Draw::bad && i % 5 == 3) token = i % 2 == 0 ? c.vocab : -1 - i;
    if (draw == Draw::bad && i % 50 == 7) token = std::numeric_limits<std::int32_t>::min();
    if (draw == Draw::bad && i % 50 == 9) token = std::numeric_limits<std::int32_t>::max();
    tokens.set_index(i, token);
  }
  return tokens;
}

void for_each_case(const std::function<void(DType, const Case&, Draw)>& body) {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Case& c : cases) {
      for (Draw draw : {Draw::uniform, Draw::frequent, Draw::one, Draw::bad}) {
        CAPTURE(c.channels);
        CAPTURE(c.vocab);
        CAPTURE(static_cast<int>(draw));
        CAPTURE(std::string(name_of(dtype)));
        body(dtype, c, draw);
      }
    }
  }
}

ErrorWord download_errors(const DeviceMemory& memory) {
  ErrorWord errors;
  std::memcpy(&errors, memory.download().data(), sizeof errors);
  return errors;
}

struct Gradients {
  HostTensor token, position;
};

Gradients run_backward(const Context& context, DType dtype, const Case& c, Draw draw, bool accumulate,
                       bool with_positions = true) {
  const std::int64_t rows = c.batch * c.tokens;
  const auto sums = [&](std::int64_t height, std::uint64_t seed) {
    return accumulate ? HostTensor::random(DType::fp32, {height, c.channels}, seed, -1, 1, c.channels + c.gap, c.offset)
                      : HostTensor(DType::fp32, {height, c.channels}, c.channels + c.gap, c.offset);
  };
  const Placed grad_out(context,
                        HostTensor::random(dtype, {rows, c.channels}, 42, -2, 2, c.channels + c.gap, c.offset)),
      tokens(context, make_tokens(c, draw)), grad_token(context, sums(c.padded_vocab, 43)),
      grad_position(context, with_positions ? sums(c.positions, 44) : HostTensor());
  GuardedWorkspace scratch(context, embedding_backward_workspace_bytes(context, rows, c.vocab, c.channels));
  embedding_backward(context, {grad_out, tokens, grad_token, grad_position, c.vocab, accumulate, accumulate},
                     scratch.workspace);
  CHECK(scratch.workspace.used() == 0);
  CHECK(scratch.intact());
  return {grad_token.back(), grad_position.back()};
}

}  // namespace

TEST_CASE("embedding_forward on CUDA: the CPU's bits, and its record of bad tokens" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for_each_case([](DType dtype, const Case& c, Draw draw) {
    for (bool with_positions : {true, false}) {
      ErrorWord errors[2];
      HostTensor outs[2];
      int side = 0;
      for (const Context& context : {Context::cpu(), device_context()}) {
        const Placed tokens(context, make_tokens(c, draw)),
            weight(context, HostTensor::random(dtype, {c.padded_vocab, c.channels}, 45, -2, 2, c.channels + c.gap)),
            positions(context,
                      with_positions ? HostTensor::random(dtype, {c.positions, c.channels}, 46) : HostTensor()),
            out(context, HostTensor(dtype, {c.batch * c.tokens, c.channels}, c.channels + c.gap, c.offset));
        const DeviceMemory word(context, sizeof(ErrorWord), 0);
        EmbeddingForward args{
            tokens, weight, positions, out, c.vocab, c.positions - c.tokens, static_cast<ErrorWord*>(word.data())};
        embedding_forward(context, args);
        embedding_forward(context, args);  // adds to the word, and keeps the first
        args.errors = nullptr;
        embedding_forward(context, args);
        outs[side] = out.back();
        errors[side++] = download_errors(word);
      }
      CHECK(outs[1].bytes() == outs[0].bytes());
      CHECK(errors[1].count == errors[0].count);
      CHECK(errors[1].first_row == errors[0].first_row);
      CHECK(errors[1].value == errors[0].value);
    }
  });
}

TEST_CASE("embedding_backward on CUDA: rare, frequent, single and bad tokens" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for_each_case([](DType dtype, const Case& c, Draw draw) {
    for (bool accumulate : {false, true}) {
      CAPTURE(accumulate);
      // fp64 sums on both sides, which round to fp32 once.
      const Gradients expected = run_backward(Context::cpu(), dtype, c, draw, accumulate);
      const Gradients got = run_backward(device_context(), dtype, c, draw, accumulate);
      check_agree("grad_token", got.token, expected.token, 2e-7, 1e-9);
      check_agree("grad_position", got.position, expected.position, 2e-7, 1e-9);
    }
  });
}

TEST_CASE("embedding_backward on CUDA: the same bits in every run, without positions too" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Case c{64, 128, 768, 5000, 5008, 128};
  const Gradients first = run_backward(device_context(), DType::bf16, c, Draw::frequent, false);
  for (int run = 0; run < 4; ++run) {
    const Gradients again = run_backward(device_context(), DType::bf16, c, Draw::frequent, false, run % 2 == 0);
    CHECK(again.token.bytes() == first.token.bytes());
    if (run % 2 == 0) CHECK(again.position.bytes() == first.position.bytes());
  }
}

TEST_CASE("embedding_backward on CUDA: accumulating leaves the rows of other tokens alone" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  HostTensor tokens(DType::int32, {1, 3}), sums(DType::fp32, {9, 2});  // NaN
  for (std::int64_t i : {0, 1, 2}) tokens.set_index(i, i == 1 ? 3 : 8);
  for (std::int64_t i : {6, 7, 16, 17}) sums.set(i, 1);
  const Placed grad_out(context, HostTensor::of(DType::fp32, {1, 2, 3, 4, 5, 6})), placed_tokens(context, tokens),
      grad_token(context, sums);
  GuardedWorkspace scratch(context, embedding_backward_workspace_bytes(context, 3, 9, 2));
  embedding_backward(context, {grad_out.tensor().reshape({3, 2}), placed_tokens, grad_token, {}, 9, true, false},
                     scratch.workspace);
  const HostTensor got = grad_token.back();
  const double expected[] = {4, 5, 7, 9};
  for (std::int64_t i = 0; i < 18; ++i) {
    const bool seen = i == 6 || i == 7 || i >= 16;
    if (!seen) CHECK(std::isnan(got.get(i)));
    if (seen) CHECK(got.get(i) == expected[i < 8 ? i - 6 : i - 14]);
  }
}

TEST_CASE("embedding on CUDA: no rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Case c{0, 4, 3, 5, 8, 6};
  for (bool accumulate : {false, true}) {
    const Gradients expected = run_backward(Context::cpu(), DType::fp32, c, Draw::uniform, accumulate);
    const Gradients got = run_backward(device_context(), DType::fp32, c, Draw::uniform, accumulate);
    CHECK(got.token.bytes() == expected.token.bytes());
    CHECK(got.position.bytes() == expected.position.bytes());
  }
}
