// The losses on CUDA against the same calls on the CPU.
#include <greyhound/loss/loss.h>
#include <tests/cuda_support.h>

#include <limits>
#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Case {
  std::string name;
  DType dtype = DType::fp32;
  std::int64_t rows = 13, hidden = 20, vocab = 1031, padded_vocab = 0, chunk_rows = 5;
  loss::Reduction reduction = loss::Reduction::mean;
  bool grad_input = true, grad_weight = true, grad_bias = false, bias = false, accumulate = false, bad_target = false;
  DType bias_dtype = DType::fp32, grad_weight_dtype = DType::fp32;
  loss::AccumDType accum = loss::AccumDType::fp32;
  double smoothing = 0, z_loss = 0;
};

struct Result {
  HostTensor grad_input, grad_weight, grad_bias, row_loss;
  loss::Report report;
};

// Keeps everything of a call on a device, so that it can be made again.
class Call {
 public:
  Call(const Context& context, const Case& c)
      : case_(c),
        padded_(c.padded_vocab == 0 ? c.vocab : c.padded_vocab),
        inputs_(context, inputs(c)),
        weight_(context, HostTensor::random(c.dtype, {padded_, c.hidden}, 32, -0.5, 0.5)),
        bias_(context, c.bias ? HostTensor::random(c.bias_dtype, {padded_}, 33, -0.5, 0.5) : HostTensor()),
        index_(context, targets(c)),
        grad_input_(context, wanted(c.grad_input, c.dtype, {c.rows, c.hidden}, 34)),
        grad_weight_(context, wanted(c.grad_weight, c.grad_weight_dtype, {padded_, c.hidden}, 35)),
        grad_bias_(context, wanted(c.grad_bias, DType::fp32, {padded_}, 36)),
        row_loss_(context, HostTensor(DType::fp32, {c.rows})),
        storage_(context, loss::LossSums::bytes, 0),
        sums_(context, storage_.data()),
        plan_(make_plan(context)),
        scratch_(context, plan_.workspace_bytes) {}

  void enqueue(const Context& context) {
    loss::CrossEntropyOptions options;
    options.reduction = case_.reduction;
    options.label_smoothing = static_cast<float>(case_.smoothing);
    options.z_loss_multiplier = static_cast<float>(case_.z_loss);
    const auto to = [&](const Placed& placed) {
      return case_.accumulate ? loss::accumulate(placed) : loss::overwrite(placed);
    };
    loss::RowOutputs rows;
    rows.loss = row_loss_;
    sums_.reset(context);
    loss::chunked_linear_cross_entropy(context, plan_, {inputs_, weight_, index_, bias_}, options,
                                       {to(grad_input_), to(grad_weight_), to(grad_bias_)}, scratch_.workspace, sums_,
                                       rows);
  }

  Result result(const Context& context) const {
    CHECK(scratch_.intact());
    return {grad_input_.back(), grad_weight_.back(), grad_bias_.back(), row_loss_.back(),
            sums_.read_unchecked(context)};
  }
  const loss::LossSums& sums() const { return sums_; }

 private:
  static HostTensor inputs(const Case& c) {
    HostTensor values = HostTensor::random(c.dtype, {c.rows, c.hidden}, 31, -1, 1);
    // A row that does not count may hold anything.
    for (std::int64_t j = 0; c.rows > 2 && j < c.hidden; ++j) {
      values.set(2 * c.hidden + j, std::numeric_limits<double>::quiet_NaN());
    }
    return values;
  }
  static HostTensor targets(const Case& c) {
    HostTensor index(DType::int32, {c.rows});
    for (std::int64_t row = 0; row < c.rows; ++row) {
      index.set_index(row, row % 8 == 2 ? -100 : row * 7919 % c.vocab);
    }
    if (c.bad_target) index.set_index(6, c.vocab);
    return index;
  }
  HostTensor wanted(bool yes, DType dtype, const Shape& shape, std::uint64_t seed) const {
    if (!yes) return HostTensor();
    return case_.accumulate ? HostTensor::random(dtype, shape, seed) : HostTensor(dtype, shape);
  }
  loss::Plan make_plan(const Context& context) const {
    loss::PlanOptions options;
    options.chunk_rows = case_.chunk_rows;
    options.grad_input = case_.grad_input;
    options.grad_weight = case_.grad_weight;
    options.grad_weight_dtype = case_.grad_weight_dtype;
    options.grad_weight_accum_dtype = case_.accum;
    return loss::plan_chunked_linear_loss(
        context, {case_.rows, case_.hidden, case_.vocab, case_.dtype, case_.padded_vocab}, options);
  }

  Case case_;
  std::int64_t padded_;
  Placed inputs_, weight_, bias_, index_, grad_input_, grad_weight_, grad_bias_, row_loss_;
  DeviceMemory storage_;
  loss::LossSums sums_;
  loss::Plan plan_;
  GuardedWorkspace scratch_;
};

Result run(const Context& context, const Case& c) {
  Call call(context, c);
  call.enqueue(context);
  return call.result(context);
}

double largest(const HostTensor& tensor) {
  double most = 0;
  for (double value : tensor.values()) most = std::max(most, std::isfinite(value) ? std::fabs(value) : 0);
  return most;
}

// A 16-bit tile rounds each logit and each gradient, and the backends' sums may fall on either side of a rounding:
// the error is relative to the largest gradient.
void check_gradient(const Case& c, const char* name, const HostTensor& got, const HostTensor& expected) {
  const double relative = c.dtype == DType::bf16 ? 1e-2 : c.dtype == DType::fp16 ? 2e-3 : 5e-6;
  check_agree(name, got, expected, 1e-5, relative * largest(expected));
}

void compare(const Case& c) {
  CAPTURE(c.name);
  CAPTURE(std::string(name_of(c.dtype)));
  CAPTURE(c.chunk_rows);
  const Result expected = run(Context::cpu(), c), got = run(device_context(), c);
  check_gradient(c, "grad_input", got.grad_input, expected.grad_input);
  check_gradient(c, "grad_weight", got.grad_weight, expected.grad_weight);
  check_gradient(c, "grad_bias", got.grad_bias, expected.grad_bias);
  const double relative = c.dtype == DType::fp32 ? 1e-5 : 3e-3;
  check_agree("row loss", got.row_loss, expected.row_loss, relative);
  CHECK(std::fabs(got.report.ce_sum - expected.report.ce_sum) <= relative * expected.report.ce_sum);
  CHECK(std::fabs(got.report.z_sum - expected.report.z_sum) <= relative * expected.report.z_sum);
  CHECK(got.report.weight_sum == expected.report.weight_sum);
  CHECK(got.report.n_valid == expected.report.n_valid);
  CHECK(got.report.errors.count == expected.report.errors.count);
}

}  // namespace

TEST_CASE("chunked_linear_cross_entropy on CUDA: dtypes, chunks, options" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t chunk_rows : {1, 2, 5, 100}) {
      Case c;
      c.dtype = dtype;
      c.chunk_rows = chunk_rows;
      c.name = "plain";
      compare(c);
      c.name = "z-loss and smoothing";
      c.z_loss = 1e-3;
      c.smoothing = 0.1;
      compare(c);
    }
    Case c;
    c.dtype = dtype;
    c.name = "sum, padded vocabulary";
    c.reduction = loss::Reduction::sum;
    c.padded_vocab = 1040;
    compare(c);
    c.name = "accumulating";
    c.accumulate = true;
    compare(c);
    c.accumulate = false;
    c.name = "bias";
    c.bias = c.grad_bias = true;
    for (DType bias_dtype : {DType::fp32, dtype}) {
      c.bias_dtype = bias_dtype;
      compare(c);
    }
    c.name = "no grad_weight";
    c.grad_weight = c.grad_bias = false;
    compare(c);
    c.name = "loss alone";
    c.grad_input = false;
    compare(c);
    c.name = "no grad_input, grad_weight in the weight's dtype";
    c.grad_weight = true;
    c.grad_weight_dtype = dtype;
    compare(c);
    c.name = "grad_weight accumulated in the weight's dtype";
    c.accum = loss::AccumDType::weight;
    compare(c);
  }
}

TEST_CASE("chunked_linear_cross_entropy on CUDA: a vocabulary of 50257" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    Case c;
    c.name = "N = 13, D = 100, V = 50257";
    c.dtype = dtype;
    c.hidden = 100;
    c.vocab = 50257;
    compare(c);
  }
}

TEST_CASE("chunked_linear_cross_entropy on CUDA: 50 calls give the same bits" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    Case c;
    c.dtype = dtype;
    c.rows = 200;
    c.hidden = 96;
    c.vocab = 5003;
    c.chunk_rows = 64;
    const Context context = device_context();
    Call call(context, c);
    call.enqueue(context);
    const Result first = call.result(context);
    for (int i = 1; i < 50; ++i) {
      call.enqueue(context);
      const Result again = call.result(context);
      CHECK(again.grad_input.bytes() == first.grad_input.bytes());
      CHECK(again.grad_weight.bytes() == first.grad_weight.bytes());
      CHECK(again.report.ce_sum == first.report.ce_sum);
    }
  }
}

TEST_CASE("chunked_linear_cross_entropy on CUDA: a target out of range" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  Case c;
  c.name = "bad target";
  c.bad_target = true;
  compare(c);
  const Context context = device_context();
  Call call(context, c);
  call.enqueue(context);
  CHECK_THROWS_WITH_AS(call.sums().read(context), doctest::Contains("target 1031 in row 6"), Error);
  context.synchronize();  // the device is as usable as before
}

TEST_CASE("chunked_linear_cross_entropy on CUDA: no rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (bool accumulate : {false, true}) {
    Case c;
    c.name = "no rows";
    c.rows = 0;
    c.accumulate = accumulate;
    const Context context = device_context();
    const Result got = run(context, c), expected = run(Context::cpu(), c);
    CHECK(got.grad_weight.bytes() == expected.grad_weight.bytes());
    CHECK(got.report.n_valid == 0);
    CHECK(got.report.ce_sum == 0);
  }
}

TEST_CASE("cross_entropy_with_grad on CUDA: mean over the valid rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  HostTensor grads[2];
  double sums_of[2] = {};
  int side = 0;
  for (const Context& context : {Context::cpu(), device_context()}) {
    const Placed logits(context, HostTensor::random(DType::fp32, {9, 500}, 41, -5, 5));
    HostTensor index(DType::int64, {9});
    for (std::int64_t row = 0; row < 9; ++row) index.set_index(row, row % 4 == 1 ? -100 : row * 50);
    const Placed device_index(context, index);
    const DeviceMemory storage(context, loss::LossSums::bytes, 0);
    loss::LossSums sums(context, storage.data());
    GuardedWorkspace scratch(context, loss::cross_entropy_workspace_bytes(context, 9));
    loss::cross_entropy_with_grad(context, logits, device_index, {}, scratch.workspace, sums);
    sums_of[side] = sums.read(context).mean_ce();
    CHECK(scratch.intact());
    grads[side++] = logits.back();
  }
  check_agree("grad", grads[1], grads[0], 1e-5, 1e-8);
  CHECK(std::fabs(sums_of[1] - sums_of[0]) <= 1e-6 * sums_of[0]);
}
