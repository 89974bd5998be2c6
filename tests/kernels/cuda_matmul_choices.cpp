// Algorithms of the CUDA products: timed, saved, loaded again.
#include <greyhound/kernels/matmul_choices.h>
#include <tests/cuda_support.h>
#include <tests/reference/matmul.h>

#include <string>
#include <thread>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Size {
  std::int64_t m = 384, n = 512, k = 256;
};

// out = a x b^T + bias on a context of its own.
class Product {
 public:
  Product(const Context& context, DType dtype, Size size = {})
      : context_(context),
        host_a_(HostTensor::random(dtype, {size.m, size.k}, 1, -1, 1)),
        host_b_(HostTensor::random(dtype, {size.n, size.k}, 2, -1, 1)),
        host_bias_(HostTensor::random(DType::fp32, {size.n}, 3)),
        size_(size),
        a_(context, host_a_),
        b_(context, host_b_),
        bias_(context, host_bias_),
        out_(context, HostTensor(dtype, {size.m, size.n})),
        scratch_(context, matmul_workspace_bytes(context, args())) {}

  Matmul args() const {
    Matmul args;
    args.a = a_;
    args.b = b_;
    args.transpose_b = true;
    args.bias = bias_;
    args.out = out_;
    return args;
  }
  void tune() {
    tune_matmul(context_, args(), scratch_.workspace);
    CHECK(scratch_.workspace.used() == 0);
  }
  HostTensor run() {
    matmul(context_, args(), scratch_.workspace);
    context_.synchronize();
    CHECK(scratch_.intact());
    return out_.back();
  }
  void check(const HostTensor& got) const {
    const reference::MatmulResult exact =
        reference::matmul(host_a_.values(), host_b_.values(), false, true, size_.m, size_.n, size_.k);
    CHECK(got.intact());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < size_.m * size_.n; ++i) {
      const double bias = host_bias_.get(i % size_.n), bound = exact.bound[i] + std::fabs(bias);
      const double rounding = got.dtype() == DType::fp32 ? 0 : 2 * ulp(got.dtype(), bound);
      if (!(std::fabs(got.get(i) - exact.values[i] - bias) <= 2e-6 * bound + rounding)) ++wrong;
    }
    CHECK(wrong == 0);
  }

 private:
  Context context_;
  HostTensor host_a_, host_b_, host_bias_;
  Size size_;
  Placed a_, b_, bias_, out_;
  GuardedWorkspace scratch_;
};

std::int64_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

}  // namespace

TEST_CASE("tuned products are right, and loaded choices give their bits" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    CAPTURE(std::string(name_of(dtype)));
    const Context tuned = Context::cuda(), loaded = Context::cuda();
    Product product(tuned, dtype), same(loaded, dtype), odd(tuned, dtype, {40, 520, 264}),
        same_odd(loaded, dtype, {40, 520, 264});
    CHECK(save_matmul_choices(tuned).empty());
    product.check(product.run());  // untuned
    product.tune();
    odd.tune();
    const std::string text = save_matmul_choices(tuned);
    CHECK(lines(text) == 2);
    CHECK(save_matmul_choices(loaded).empty());
    same.run();  // what this chose is replaced
    CHECK(load_matmul_choices(loaded, text) == 2);
    CHECK(save_matmul_choices(loaded) == text);
    const HostTensor got = product.run(), got_odd = odd.run();
    product.check(got);
    odd.check(got_odd);
    CHECK(same.run().bytes() == got.bytes());
    CHECK(same_odd.run().bytes() == got_odd.bytes());
    CHECK(product.run().bytes() == got.bytes());
    CHECK(save_matmul_choices(tuned.with_stream(nullptr)) == text);  // copies share choices
  }
}

TEST_CASE("tuning changes no bit of a product" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  // Few outputs of long sums too, which the library cuts into parts.
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const Size& size : {Size{}, Size{64, 72, 8192}, Size{768, 768, 16384}, Size{2048, 3072, 768}, Size{8, 8, 8}}) {
      CAPTURE(std::string(name_of(dtype)));
      CAPTURE(size.k);
      const Context context = Context::cuda();
      Product product(context, dtype, size);
      const HostTensor untuned = product.run();
      product.tune();
      CHECK(product.run().bytes() == untuned.bytes());
    }
  }
}

TEST_CASE("TuneMatmuls: products are tuned where they are met" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  Product product(context, DType::bf16), other(context, DType::bf16, {64, 72, 8192}),
      third(context, DType::bf16, {72, 64, 136});
  const HostTensor untuned = product.run();
  CHECK(save_matmul_choices(context).empty());
  {
    const TuneMatmuls outer(context);
    { const TuneMatmuls inner(context.with_stream(nullptr)); }
    CHECK(product.run().bytes() == untuned.bytes());
    product.run();
    CHECK(lines(save_matmul_choices(context)) == 1);
    other.check(other.run());
  }
  const std::string text = save_matmul_choices(context);
  CHECK(lines(text) == 2);
  third.check(third.run());
  CHECK(save_matmul_choices(context) == text);

  // What is added to a matrix: garbage while it is tuned, right afterwards.
  const HostTensor a = HostTensor::random(DType::bf16, {40, 64}, 4, -1, 1),
                   start = HostTensor::random(DType::fp32, {64, 64}, 5);
  const Placed operand(context, a);
  Matmul sum;
  sum.a = operand;
  sum.b = operand;
  sum.transpose_a = true;
  sum.beta = 1;
  const auto added = [&](const Context& on) {
    const Placed out(on, start);
    sum.out = out;
    GuardedWorkspace scratch(on, matmul_workspace_bytes(on, sum));
    matmul(on, sum, scratch.workspace);
    on.synchronize();
    return out.back();
  };
  const HostTensor want = added(context);
  {
    const TuneMatmuls tuning(context);
    added(context);
  }
  CHECK(lines(save_matmul_choices(context)) == 3);
  CHECK(added(context).bytes() == want.bytes());
}

TEST_CASE("choices of another device or library, malformed ones, refused ones" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda(), other = Context::cuda();
  Product product(context, DType::bf16), fp32(context, DType::fp32), again(other, DType::bf16);
  product.tune();
  const std::string text = save_matmul_choices(context);
  const std::string device = text.substr(0, text.find('"', 1) + 1);
  CHECK(load_matmul_choices(other, replaced(text, device, "\"Another device\"")) == 0);
  CHECK(load_matmul_choices(other, replaced(text, " cublaslt=", " cublaslt=1")) == 0);
  CHECK_THROWS_AS(load_matmul_choices(other, text + "malformed\n"), Error);
  CHECK(save_matmul_choices(other).empty());
  again.check(again.run());

  // An algorithm for other dtypes, said to be this product's.
  const Context fp32_context = Context::cuda();
  Product of_fp32(fp32_context, DType::fp32);
  of_fp32.tune();
  const std::string fp32_text = save_matmul_choices(fp32_context);
  const std::string wrong = text.substr(0, text.find("algorithm=")) + fp32_text.substr(fp32_text.find("algorithm="));
  CHECK(load_matmul_choices(other, wrong) == 1);
  try {
    again.run();
    FAIL("ran an algorithm of other dtypes");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(std::string(error.what()).find("refuses the algorithm") != std::string::npos);
  }
  CHECK(load_matmul_choices(other, text) == 1);  // the right one again
  CHECK(again.run().bytes() == product.run().bytes());
}

TEST_CASE("two host threads tune and multiply, each with a context" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  Product expected(context, DType::bf16);
  expected.tune();
  const std::string text = save_matmul_choices(context);
  const HostTensor want = expected.run();

  HostTensor got[2];
  std::string complaint[2];
  const auto work = [&](int thread) {
    try {
      const Context own = Context::cuda();
      Product product(own, DType::bf16), another(own, DType::bf16, {64, 72, 136 + 8 * thread});
      another.tune();
      load_matmul_choices(own, text);
      for (int i = 0; i < 20; ++i) got[thread] = product.run();
    } catch (const std::exception& error) {
      complaint[thread] = error.what();
    }
  };
  std::thread one(work, 0), two(work, 1);
  one.join();
  two.join();
  for (int thread = 0; thread < 2; ++thread) {
    CHECK(complaint[thread].empty());
    CHECK(got[thread].bytes() == want.bytes());
  }
}
