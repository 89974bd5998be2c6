// The CUDA row kernels of cross-entropy against the CPU's.
#include <greyhound/kernels/cross_entropy.h>
#include <tests/cuda_support.h>

#include <limits>
#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Case {
  std::string name;
  std::int64_t rows = 7, vocab = 33, columns = 0, stride = 0, offset = 0;
  DType index_dtype = DType::int64;
  std::int64_t ignore_index = -100;
  bool grad = true, in_place = true, outputs = true, weights = false, upstream_per_row = false;
  double denominator = 3, smoothing = 0, z_loss = 0, softcap = 0, scale = 1, range = 6;
};

struct Problem {
  HostTensor logits, index, class_weights, row_weights, upstream, denominator;
};

Problem make_problem(const Case& c, DType dtype) {
  Problem p;
  const std::int64_t columns = c.columns == 0 ? c.vocab : c.columns;
  p.logits = HostTensor::random(dtype, {c.rows, columns}, 11, -c.range, c.range, c.stride, c.offset);
  p.index = HostTensor(c.index_dtype, {c.rows});
  for (std::int64_t row = 0; row < c.rows; ++row) p.index.set_index(row, (row * 7919 + 1) % c.vocab);
  if (c.rows > 4) {
    p.index.set_index(1, c.ignore_index);
    p.index.set_index(3, c.vocab);
    // A few masked columns, and a row's target among them.
    for (std::int64_t j = 0; j < c.vocab; j += 5) p.logits.set(2 * columns + j, -infinity);
    for (std::int64_t j = 0; j < c.vocab; j += 2) p.logits.set(4 * columns + j, -infinity);
  }
  if (c.weights) {
    p.class_weights = HostTensor::random(DType::fp32, {c.vocab}, 12, 0.5, 2);
    p.row_weights = HostTensor::random(DType::fp32, {c.rows}, 13, 0.5, 2);
  }
  p.upstream =
      c.upstream_per_row ? HostTensor::random(DType::fp32, {c.rows}, 14, -2, 2) : HostTensor::of(DType::fp32, {1.5});
  p.denominator = HostTensor::of(DType::fp32, {c.denominator});
  return p;
}

struct Result {
  HostTensor grad, row_ce, row_z, row_weight, loss, lse, target_logprob, entropy, argmax;
  LossSumsData sums{};
  double count = 0;
};

Result run(const Context& context, const Case& c, const Problem& p) {
  const HostTensor none, per_row(DType::fp32, {c.rows}), integers(DType::int32, {c.rows});
  const Placed logits(context, p.logits), index(context, p.index), class_weights(context, p.class_weights),
      row_weights(context, p.row_weights), upstream(context, p.upstream), denominator(context, p.denominator);
  HostTensor fresh = p.logits;
  std::fill(fresh.bytes().begin(), fresh.bytes().end(), 0xff);
  const Placed grad(context, fresh), ce(context, per_row), z(context, per_row), weight(context, per_row);
  const HostTensor& optional = c.outputs ? per_row : none;
  const Placed loss(context, optional), lse(context, optional), logprob(context, optional), entropy(context, optional),
      argmax(context, c.outputs ? integers : none);
  const DeviceMemory sums(context, sizeof(LossSumsData), 0);
  const Placed count(context, HostTensor(DType::fp32, {1}));

  CrossEntropyRows args;
  args.logits = logits;
  args.targets = {index, c.vocab, c.ignore_index};
  if (c.grad) args.grad = c.in_place ? logits.tensor() : grad.tensor();
  args.row_ce = ce;
  args.row_z = z;
  args.row_weight = weight;
  args.loss = loss;
  args.lse = lse;
  args.target_logprob = logprob;
  args.entropy = entropy;
  args.argmax = argmax;
  args.class_weights = class_weights;
  args.row_weights = row_weights;
  args.upstream = upstream;
  args.denominator = denominator;
  args.z_loss_multiplier = static_cast<float>(c.z_loss);
  args.label_smoothing = static_cast<float>(c.smoothing);
  args.softcap = static_cast<float>(c.softcap);
  args.logit_scale = static_cast<float>(c.scale);
  cross_entropy_rows(context, args);
  sum_rows(context, {ce, z, weight, args.targets, static_cast<LossSumsData*>(sums.data())});
  count_targets(context, {args.targets, class_weights, row_weights, count});
  context.synchronize();

  Result result;
  result.grad = c.grad && c.in_place ? logits.back() : grad.back();
  if (!c.in_place) CHECK(logits.back().bytes() == p.logits.bytes());
  result.row_ce = ce.back();
  result.row_z = z.back();
  result.row_weight = weight.back();
  result.loss = loss.back();
  result.lse = lse.back();
  result.target_logprob = logprob.back();
  result.entropy = entropy.back();
  result.argmax = argmax.back();
  result.count = count.back().get(0);
  std::memcpy(&result.sums, sums.download().data(), sizeof result.sums);
  return result;
}

void check_same(double got, double expected) {
  CAPTURE(got);
  CAPTURE(expected);
  CHECK(agree(DType::fp32, got, expected, 1e-6, 0));
}

void compare(const Case& c, DType dtype, const Problem& p) {
  CAPTURE(c.name);
  CAPTURE(std::string(name_of(dtype)));
  const Result expected = run(Context::cpu(), c, p), got = run(device_context(), c, p);
  // A gradient is a small difference of larger terms where smoothing or the z-loss is on: fp32 loses 1e-7 of those.
  const double scale = c.denominator == 0 ? 0 : 4 * 1.5 * c.scale / c.denominator;
  if (c.grad) check_agree("grad", got.grad, expected.grad, 1e-5, 2e-7 * scale);
  check_agree("row_ce", got.row_ce, expected.row_ce, 1e-5, 1e-6);
  check_agree("row_z", got.row_z, expected.row_z, 1e-5, 1e-6);
  check_agree("row_weight", got.row_weight, expected.row_weight, 1e-6);
  check_agree("loss", got.loss, expected.loss, 1e-5, 1e-6);
  check_agree("lse", got.lse, expected.lse, 1e-5, 1e-6);
  check_agree("target_logprob", got.target_logprob, expected.target_logprob, 1e-5, 1e-6);
  check_agree("entropy", got.entropy, expected.entropy, 2e-5, 1e-6);
  check_agree("argmax", got.argmax, expected.argmax, 0);
  check_same(got.count, expected.count);
  check_same(got.sums.weight_sum, expected.sums.weight_sum);
  CHECK(got.sums.n_valid == expected.sums.n_valid);
  CHECK(got.sums.nonfinite_rows == expected.sums.nonfinite_rows);
  CHECK(got.sums.errors.count == expected.sums.errors.count);
  CHECK(got.sums.errors.first_row == expected.sums.errors.first_row);
  CHECK(got.sums.errors.value == expected.sums.errors.value);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, auto&& change) {
    Case c;
    c.name = name;
    change(c);
    all.push_back(c);
  };
  add("plain", [](Case&) {});
  add("not in place", [](Case& c) { c.in_place = false; });
  add("loss alone", [](Case& c) { c.grad = false; });
  add("no optional outputs", [](Case& c) { c.outputs = false; });
  add("int32 targets", [](Case& c) { c.index_dtype = DType::int32; });
  add("ignore_index in the vocabulary", [](Case& c) { c.ignore_index = 2; });
  add("padded, strided, misaligned", [](Case& c) {
    c.columns = 40;
    c.stride = 43;
    c.offset = 1;
  });
  add("weights and upstream per row", [](Case& c) { c.weights = c.upstream_per_row = true; });
  add("denominator 0", [](Case& c) { c.denominator = 0; });
  add("label smoothing", [](Case& c) { c.smoothing = 0.1; });
  add("z-loss", [](Case& c) { c.z_loss = 1e-2; });
  add("softcap", [](Case& c) {
    c.softcap = 5;
    c.range = 20;
  });
  add("logit scale", [](Case& c) { c.scale = 0.25; });
  add("everything", [](Case& c) {
    c.rows = 19;
    c.vocab = 1025;
    c.columns = 1031;
    c.stride = 1033;
    c.offset = 3;
    c.weights = c.upstream_per_row = true;
    c.smoothing = 0.2;
    c.z_loss = 1e-3;
    c.softcap = 8;
    c.scale = 1.5;
  });
  return all;
}

}  // namespace

TEST_CASE("cross_entropy_rows: CUDA agrees with the CPU, every option and dtype" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const Case& c : cases()) compare(c, dtype, make_problem(c, dtype));
  }
}

TEST_CASE("cross_entropy_rows: CUDA agrees with the CPU at any vocabulary" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (std::int64_t vocab :
       {1, 2, 5, 7, 8, 9, 31, 127, 1023, 32000, 50257, 65535, 65537, 100352, 128256, 131073, 152064, 200064, 262144}) {
    Case c;
    c.name = "V = " + std::to_string(vocab);
    c.vocab = vocab;
    c.rows = 5;
    c.offset = vocab % 2;
    for (DType dtype : {DType::bf16, DType::fp32}) compare(c, dtype, make_problem(c, dtype));
  }
}

TEST_CASE("cross_entropy_rows: rows with NaN, infinities, only masked columns, large offsets" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Case c;
  c.name = "special rows";
  c.rows = 9;
  c.vocab = 12;
  for (const double smoothing : {0.0, 0.1}) {
    for (const double softcap : {0.0, 30.0}) {
      c.smoothing = smoothing;
      c.softcap = softcap;
      Problem p = make_problem(c, DType::fp32);
      for (std::int64_t row = 0; row < c.rows; ++row) {
        p.index.set_index(row, 3);
        for (std::int64_t j = 0; j < c.vocab; ++j) p.logits.set(row * c.vocab + j, 0.25 * static_cast<double>(j));
      }
      const auto set = [&](std::int64_t row, std::int64_t j, double value) { p.logits.set(row * c.vocab + j, value); };
      set(0, 5, nan);
      set(1, 3, nan);
      set(2, 5, infinity);
      set(3, 3, infinity);
      for (std::int64_t j = 0; j < c.vocab; ++j) set(4, j, -infinity);
      for (std::int64_t j = 0; j < c.vocab; ++j) set(5, j, j == 3 ? 10 : -infinity);
      for (std::int64_t j = 0; j < c.vocab; ++j) set(6, j, (1 << 20) + j);
      set(7, 3, 20);
      set(8, 3, -infinity);
      compare(c, DType::fp32, p);
    }
  }
}

TEST_CASE("cross_entropy_rows: misaligned rows give the same bits" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    Case c;
    c.rows = 6;
    c.vocab = 4099;
    c.stride = 4104;
    const Result aligned = run(device_context(), c, make_problem(c, dtype));
    for (std::int64_t offset : {1, 2, 3}) {
      c.offset = offset;
      c.stride = 4104 + offset % 2;
      const Result moved = run(device_context(), c, make_problem(c, dtype));
      CHECK(moved.grad.values() == aligned.grad.values());
      CHECK(moved.lse.bytes() == aligned.lse.bytes());
      CHECK(moved.row_ce.bytes() == aligned.row_ce.bytes());
    }
  }
}

TEST_CASE("cross_entropy_rows: 50 runs give the same bits" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  Case c;
  c.rows = 300;
  c.vocab = 50257;
  c.range = 8;
  const Problem p = make_problem(c, DType::bf16);
  const Result first = run(device_context(), c, p);
  for (int i = 1; i < 50; ++i) {
    const Result again = run(device_context(), c, p);
    CHECK(again.grad.bytes() == first.grad.bytes());
    CHECK(std::memcmp(&again.sums, &first.sums, sizeof first.sums) == 0);
  }
}

TEST_CASE("sum_rows: many rows, and sums that go on over calls" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  const std::int64_t rows = 70001;
  const HostTensor ce = HostTensor::random(DType::fp32, {rows}, 1, 0, 10),
                   z = HostTensor::random(DType::fp32, {rows}, 2, 0, 99);
  HostTensor index(DType::int32, {rows});
  for (std::int64_t i = 0; i < rows; ++i) index.set_index(i, i % 11);
  index.set_index(69999, 11);
  index.set_index(70000, -7);
  LossSumsData expected{}, got{};
  sum_rows(
      Context::cpu(),
      {Placed(Context::cpu(), ce), Placed(Context::cpu(), z), {}, {Placed(Context::cpu(), index), 11, 4}, &expected});
  const DeviceMemory sums(context, sizeof got, 0);
  const Placed device_ce(context, ce), device_z(context, z), device_index(context, index);
  for (int call = 0; call < 2; ++call) {
    sum_rows(context, {device_ce, device_z, {}, {device_index, 11, 4}, static_cast<LossSumsData*>(sums.data())});
  }
  std::memcpy(&got, sums.download().data(), sizeof got);
  CHECK(std::fabs(got.ce_sum - 2 * expected.ce_sum) <= 1e-12 * expected.ce_sum);
  CHECK(std::fabs(got.z_sum - 2 * expected.z_sum) <= 1e-12 * expected.z_sum);
  CHECK(got.n_valid == 2 * expected.n_valid);
  CHECK(got.errors.count == 4);
  CHECK(got.errors.first_row == 69999);
  CHECK(got.errors.value == 11);
}

TEST_CASE("cross_entropy_rows: no rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  Case c;
  c.rows = 0;
  const Context context = device_context();
  CrossEntropyRows args;
  args.logits = ConstTensor(nullptr, DType::bf16, {0, 33}, context.device());
  args.targets = {ConstTensor(nullptr, DType::int64, {0}, context.device()), 33, -100};
  cross_entropy_rows(context, args);
  context.synchronize();
}
