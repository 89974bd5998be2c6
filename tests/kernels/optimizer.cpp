#include <greyhound/kernels/optimizer.h>

#include <doctest/doctest.h>
#include <greyhound/tests/kernels/buffers.h>
#include <greyhound/tests/reference/optimizer.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

float run_norm(const Context& context, Buffer& grads, std::int64_t n) {
  float norm = -1;
  ExactWorkspace memory(gradient_norm_workspace_bytes(context, n));
  Workspace workspace = memory.workspace();
  gradient_norm(context, {grads.vector(), Tensor(&norm, DType::fp32, {1})}, workspace);
  CHECK(workspace.used() == 0);
  CHECK(memory.intact());
  return norm;
}

// Everything that a step reads and writes.
struct State {
  State(std::int64_t n, std::uint64_t seed)
      : weights(DType::fp32, 1, n, random_values(n, seed)),
        working(DType::bf16, 1, n, random_values(n, seed)),
        grads(DType::fp32, 1, n, random_values(n, seed + 1)),
        m(DType::fp32, 1, n, random_values(n, seed + 2, -0.1, 0.1)),
        v(DType::fp32, 1, n, random_values(n, seed + 3, 0, 0.1)),
        ranges{{0, n / 3, 0.1f}, {n / 3, n / 3, 9.0f}, {n / 3, n - n / 4, 0.0f}, {n - n / 4, n, 0.5f}} {}

  AdamW args() {
    AdamW args;
    args.weights = weights.vector();
    args.working_weights = working.vector();
    args.grads = grads.vector();
    args.m = m.vector();
    args.v = v.vector();
    args.norm = Tensor(&norm, DType::fp32, {1});
    args.steps_taken = Tensor(&steps_taken, DType::int64, {1});
    args.ranges = ranges.data();
    args.range_count = static_cast<std::int64_t>(ranges.size());
    args.lr = 0.01f;
    return args;
  }
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> all = weights.bytes();
    for (const Buffer* part : {&working, &m, &v}) all.insert(all.end(), part->bytes().begin(), part->bytes().end());
    return all;
  }

  Buffer weights, working, grads, m, v;
  std::vector<DecayRange> ranges;
  float norm = 1;
  std::int64_t steps_taken = 0;
};

}  // namespace

TEST_CASE("gradient_norm: fp64 sums in a fixed order") {
  for (std::int64_t n : {0, 1, 7, 16384, 16385, 100003}) {
    CAPTURE(n);
    Buffer grads(DType::fp32, 1, n, random_values(n, 1));
    const double exact = reference::norm(grads.values());
    CHECK(run_norm(Context::cpu(2), grads, n) == doctest::Approx(exact).epsilon(1e-7));
    CHECK(grads.intact());
    check_same_bits_for_all_threads([&](const Context& context) { return run_norm(context, grads, n); });
  }
}

TEST_CASE("gradient_norm: no overflow of squares; NaN and infinity show") {
  Buffer large(DType::fp32, 1, 2, {3e30, 4e30}), tiny(DType::fp32, 1, 2, {3e-30, 4e-30});
  CHECK(run_norm(Context::cpu(1), large, 2) == doctest::Approx(5e30).epsilon(1e-6));
  CHECK(run_norm(Context::cpu(1), tiny, 2) / 5e-30 == doctest::Approx(1).epsilon(1e-6));
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (std::int64_t at : {0, 20000, 39999}) {
      Buffer grads(DType::fp32, 1, 40000, random_values(40000, 2));
      grads.set(0, at, bad);
      CHECK_FALSE(std::isfinite(run_norm(Context::cpu(2), grads, 40000)));
    }
  }
}

TEST_CASE("adamw: steps against fp64, decay per range, working copy, with and without clipping") {
  for (std::int64_t n : {1, 5, 1001, 40000}) {
    for (float grad_clip : {0.0f, 1.0f, 1e9f}) {
      CAPTURE(n);
      CAPTURE(grad_clip);
      State state(n, 3);
      const Context context = Context::cpu(2);
      reference::AdamWState exact{state.weights.values(), state.m.values(), state.v.values()};
      std::vector<double> decay(static_cast<std::size_t>(n), 0.0);
      for (const DecayRange& range : state.ranges) {
        for (std::int64_t i = range.begin; i < range.end; ++i) decay[i] = range.weight_decay;
      }
      for (int t = 1; t <= 5; ++t) {
        state.norm = run_norm(context, state.grads, n);
        AdamW args = state.args();
        args.grad_clip = grad_clip;
        adamw(context, args);
        reference::adamw(&exact, state.grads.values(), decay, state.norm, t,
                         {args.lr, args.beta1, args.beta2, args.eps, grad_clip});
        CHECK(state.steps_taken == t);
      }
      check_close(state.weights.values(), exact.weights, DType::fp32, 2e-6, 1e-7);
      check_close(state.m.values(), exact.m, DType::fp32, 2e-6, 1e-7);
      check_close(state.v.values(), exact.v, DType::fp32, 2e-6, 1e-9);
      Buffer rounded(DType::bf16, 1, n, state.weights.values());
      CHECK(state.working.bytes() == rounded.bytes());
      for (const Buffer* part : {&state.weights, &state.working, &state.grads, &state.m, &state.v}) {
        CHECK(part->intact());
      }
    }
  }
}

TEST_CASE("adamw: bias correction keeps its precision at the first step and after a million") {
  for (std::int64_t steps : {0, 1000000}) {
    State state(3, 4);
    state.steps_taken = steps;
    AdamW args = state.args();
    args.beta2 = 0.999f;
    reference::AdamWState exact{state.weights.values(), state.m.values(), state.v.values()};
    reference::adamw(&exact, state.grads.values(), {0.1, 0.0, 0.0}, 1, static_cast<int>(steps + 1),
                     {args.lr, args.beta1, args.beta2, args.eps, 0});
    adamw(Context::cpu(1), args);
    CHECK(state.steps_taken == steps + 1);
    check_close(state.weights.values(), exact.weights, DType::fp32, 1e-6, 1e-7);
  }
}

TEST_CASE("adamw: a NaN or infinite gradient changes nothing, to the bit, and the step is not counted") {
  const Context context = Context::cpu(2);
  const std::int64_t n = 20000;
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    State state(n, 5);
    state.steps_taken = 12;
    state.grads.set(0, 17000, bad);
    state.norm = run_norm(context, state.grads, n);
    const std::vector<unsigned char> before = state.bytes();
    for (float grad_clip : {0.0f, 1.0f}) {
      AdamW args = state.args();
      args.grad_clip = grad_clip;
      adamw(context, args);
      const bool unchanged = state.bytes() == before;
      CHECK(unchanged);
      CHECK(state.steps_taken == 12);
    }
    state.grads.set(0, 17000, 1);
    state.norm = run_norm(context, state.grads, n);
    adamw(context, state.args());
    CHECK(state.bytes() != before);
    CHECK(state.steps_taken == 13);
  }
}

TEST_CASE("adamw: without a working copy, no gradient at all, no parameters") {
  State state(10, 6), twin(10, 6);
  AdamW args = state.args();
  args.working_weights = {};
  adamw(Context::cpu(1), args);
  adamw(Context::cpu(1), twin.args());
  CHECK(state.weights.bytes() == twin.weights.bytes());

  State zero(10, 7);
  for (std::int64_t i = 0; i < 10; ++i) {
    for (Buffer* part : {&zero.grads, &zero.m, &zero.v}) part->set(0, i, 0);
  }
  zero.norm = 0;
  args = zero.args();
  args.grad_clip = 1;
  zero.ranges = {{0, 10, 0.0f}};
  args.ranges = zero.ranges.data();
  args.range_count = 1;
  const std::vector<double> before = zero.weights.values();
  adamw(Context::cpu(1), args);
  CHECK(zero.weights.values() == before);

  State none(0, 8);
  args = none.args();
  args.range_count = 0;
  adamw(Context::cpu(1), args);
  CHECK(none.steps_taken == 1);
}

TEST_CASE("adamw: the same bits for any number of threads") {
  check_same_bits_for_all_threads([](const Context& context) {
    State state(100003, 9);
    AdamW args = state.args();
    args.grad_clip = 0.5f;
    adamw(context, args);
    return state.bytes();
  });
}

TEST_CASE("adamw: wrong arguments are refused") {
  State state(10, 10);
  const Context context = Context::cpu(1);
  AdamW args = state.args();
  --args.range_count;
  CHECK_THROWS_WITH_AS(adamw(context, args), "adamw: the ranges cover 8 of 10 parameters", Error);
  args = state.args();
  state.ranges[2].begin = 4;
  CHECK_THROWS_WITH_AS(adamw(context, args), "adamw: range 2 is [4, 8), expected it to begin at 3", Error);
  state.ranges[2].begin = 3;
  args.beta2 = 1;
  CHECK_THROWS_AS(adamw(context, args), Error);
  args = state.args();
  args.steps_taken = Tensor(&state.norm, DType::fp32, {1});
  CHECK_THROWS_WITH_AS(adamw(context, args), "adamw: steps_taken: expected int64, got fp32", Error);
}
