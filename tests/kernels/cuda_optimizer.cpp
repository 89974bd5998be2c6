// Gradient norm and AdamW on CUDA against the CPU, and against fp64.
#include <greyhound/kernels/optimizer.h>
#include <tests/cuda_support.h>
#include <tests/reference/optimizer.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

double run_norm(const Context& context, const HostTensor& grads) {
  const std::int64_t n = grads.shape().elements();
  const Placed placed(context, grads), norm(context, HostTensor(DType::fp32, {1}));
  GuardedWorkspace scratch(context, gradient_norm_workspace_bytes(context, n));
  gradient_norm(context, {placed, norm}, scratch.workspace);
  CHECK(scratch.intact());
  return norm.back().get(0);
}

struct Case {
  std::int64_t n, ranges;  // of weight decay
  float grad_clip = 1;
  double norm = 3;
  std::int64_t offset = 0, steps_taken = 0;
  bool working = true;
};

struct State {
  HostTensor weights, working, m, v;
  std::int64_t steps_taken = 0;
};

std::vector<DecayRange> make_ranges(const Case& c) {
  std::vector<DecayRange> ranges;
  for (std::int64_t i = 0; i < c.ranges; ++i) {
    const std::int64_t begin = c.n * i / c.ranges, end = c.n * (i + 1) / c.ranges;
    ranges.push_back({begin, begin, 9});  // an empty one
    ranges.push_back({begin, end, i % 3 == 1 ? 0.0f : 0.1f * static_cast<float>(i % 7)});
  }
  return ranges;
}

HostTensor values(const Case& c, std::uint64_t seed, double low, double high) {
  return HostTensor::random(DType::fp32, {c.n}, seed, low, high, 0, c.offset);
}

State run(const Context& context, const Case& c, int steps = 1) {
  HostTensor count(DType::int64, {1});
  count.set_index(0, c.steps_taken);
  const Placed weights(context, values(c, 51, -2, 2)), grads(context, values(c, 52, -2, 2)),
      m(context, values(c, 53, -0.1, 0.1)), v(context, values(c, 54, 0, 0.1)),
      working(context, c.working ? HostTensor(DType::bf16, {c.n}, 0, c.offset) : HostTensor()),
      norm(context, HostTensor::of(DType::fp32, {c.norm})), steps_taken(context, count);
  const std::vector<DecayRange> ranges = make_ranges(c);
  AdamW args;
  args.weights = weights;
  args.working_weights = working;
  args.grads = grads;
  args.m = m;
  args.v = v;
  args.norm = norm;
  args.steps_taken = steps_taken;
  args.ranges = ranges.data();
  args.range_count = static_cast<std::int64_t>(ranges.size());
  args.lr = 0.01f;
  args.grad_clip = c.grad_clip;
  for (int step = 0; step < steps; ++step) adamw(context, args);
  State state{weights.back(), working.back(), m.back(), v.back()};
  CHECK(grads.back().bytes() == values(c, 52, -2, 2).bytes());
  copy_bytes(context, &state.steps_taken, Device::cpu(), steps_taken.tensor().data, context.device(),
             sizeof state.steps_taken);
  context.synchronize();
  return state;
}

}  // namespace

TEST_CASE("gradient_norm on CUDA: fp64 sums of any number of elements, aligned or not" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (std::int64_t n : {0, 1, 3, 7, 1024, 8192, 8193, 100003, 3000001}) {
    for (std::int64_t offset : {0, 1}) {
      CAPTURE(n);
      const HostTensor grads = HostTensor::random(DType::fp32, {n}, 50, -2, 2, 0, offset);
      const double exact = reference::norm(grads.values()), got = run_norm(device_context(), grads);
      CHECK(agree(DType::fp32, got, exact, 1e-7, 0));
      CHECK(run_norm(device_context(), grads) == got);
      CHECK(agree(DType::fp32, got, run_norm(Context::cpu(), grads), 1.2e-7, 0));
    }
  }
}

TEST_CASE("gradient_norm on CUDA: no overflow of squares; NaN and infinity show" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  CHECK(agree(DType::fp32, run_norm(device_context(), HostTensor::of(DType::fp32, {3e30, 4e30})), 5e30, 1e-6, 0));
  CHECK(agree(DType::fp32, run_norm(device_context(), HostTensor::of(DType::fp32, {3e-30, 4e-30})), 5e-30, 1e-6, 0));
  for (double bad : {quiet_nan, infinity, -infinity}) {
    for (std::int64_t at : {0, 20000, 39998}) {
      HostTensor grads = HostTensor::random(DType::fp32, {39999}, 50);
      grads.set(at, bad);
      CHECK_FALSE(std::isfinite(run_norm(device_context(), grads)));
    }
  }
}

TEST_CASE("adamw on CUDA: sizes, decay ranges, clipping, alignment" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  std::vector<Case> cases = {{1, 1}, {3, 2}, {17, 5}, {2048, 3}, {2049, 1}, {40000, 100}, {40003, 700}, {300000, 7}};
  for (std::size_t i = 0, count = cases.size(); i < count; ++i) {
    Case c = cases[i];
    c.offset = 1;
    cases.push_back(c);
    c.grad_clip = 0;
    c.working = false;
    c.steps_taken = 1000000;
    cases.push_back(c);
    c.grad_clip = 1e9f;
    c.offset = 0;
    cases.push_back(c);
  }
  for (const Case& c : cases) {
    CAPTURE(c.n);
    CAPTURE(c.ranges);
    CAPTURE(c.offset);
    CAPTURE(c.grad_clip);
    const State got = run(device_context(), c, 3), expected = run(Context::cpu(), c, 3);
    check_agree("weights", got.weights, expected.weights, 2e-6, 1e-7);
    check_agree("m", got.m, expected.m, 1e-6, 1e-7);
    check_agree("v", got.v, expected.v, 1e-6, 1e-9);
    CHECK(got.steps_taken == c.steps_taken + 3);
    CHECK(expected.steps_taken == c.steps_taken + 3);
    if (!c.working) continue;
    HostTensor rounded(DType::bf16, {c.n}, 0, c.offset);
    for (std::int64_t i = 0; i < c.n; ++i) rounded.set(i, got.weights.get(i));
    CHECK(got.working.bytes() == rounded.bytes());
  }
}

TEST_CASE("adamw on CUDA against fp64" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  Case c{5001, 5};
  for (double norm : {0.5, 3.0}) {
    c.norm = norm;
    const State got = run(device_context(), c, 5);
    reference::AdamWState exact{values(c, 51, -2, 2).values(), values(c, 53, -0.1, 0.1).values(),
                                values(c, 54, 0, 0.1).values()};
    std::vector<double> decay(static_cast<std::size_t>(c.n));
    for (const DecayRange& range : make_ranges(c)) {
      for (std::int64_t i = range.begin; i < range.end; ++i) decay[static_cast<std::size_t>(i)] = range.weight_decay;
    }
    for (int t = 1; t <= 5; ++t) {
      reference::adamw(&exact, values(c, 52, -2, 2).values(), decay, norm, t, {0.01f, 0.9f, 0.95f, 1e-8f, 1});
    }
    for (std::int64_t i = 0; i < c.n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      REQUIRE(agree(DType::fp32, got.weights.get(i), exact.weights[at], 2e-6, 1e-7));
      REQUIRE(agree(DType::fp32, got.m.get(i), exact.m[at], 2e-6, 1e-7));
      REQUIRE(agree(DType::fp32, got.v.get(i), exact.v[at], 2e-6, 1e-9));
    }
  }
}

TEST_CASE("adamw on CUDA: a norm that is not finite changes nothing; no parameters" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (double norm : {quiet_nan, infinity}) {
    Case c{5001, 5};
    c.norm = norm;
    c.steps_taken = 12;
    const State got = run(device_context(), c);
    CHECK(got.weights.bytes() == values(c, 51, -2, 2).bytes());
    CHECK(got.working.bytes() == HostTensor(DType::bf16, {c.n}).bytes());
    CHECK(got.m.bytes() == values(c, 53, -0.1, 0.1).bytes());
    CHECK(got.v.bytes() == values(c, 54, 0, 0.1).bytes());
    CHECK(got.steps_taken == 12);
  }
  CHECK(run(device_context(), {0, 1}).steps_taken == 1);
}
