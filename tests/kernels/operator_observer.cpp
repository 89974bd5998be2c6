#include <greyhound/kernels/operator_observer.h>

#include <doctest/doctest.h>
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/matmul.h>
#include <tests/cuda_support.h>

#include <string>
#include <vector>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

class Recorder final : public OperatorObserver {
 public:
  void enqueued(const Context& context, const OperatorCall& call) override {
    CHECK(context.device() == test::test_device());
    calls.push_back(call);
  }
  std::vector<OperatorCall> calls;
};

}  // namespace

TEST_CASE_ON_EACH_BACKEND("operator observer: hears of every operator by its name, and of a product's sizes") {
  const Context context = test::test_context(1);
  const Placed a(context, HostTensor::random(DType::fp32, {3, 5}, 1)),
      b(context, HostTensor::random(DType::fp32, {7, 5}, 2));
  const Placed out(context, HostTensor(DType::fp32, {3, 7}));
  Matmul product;
  product.a = a;
  product.b = b;
  product.transpose_b = true;
  product.out = out;
  GuardedWorkspace scratch(context, matmul_workspace_bytes(context, product));

  Recorder recorder;
  CHECK(observe_operators(&recorder) == nullptr);
  matmul(context, product, scratch.workspace);
  gelu_forward(context, {out, out});
  CHECK(observe_operators(nullptr) == &recorder);
  gelu_forward(context, {out, out});  // nobody listens

  REQUIRE(recorder.calls.size() == 2);
  const OperatorCall &first = recorder.calls[0], &second = recorder.calls[1];
  CHECK(std::string(first.name) == "matmul");
  CHECK(first.m == 3);
  CHECK(first.n == 7);
  CHECK(first.k == 5);
  CHECK_FALSE(first.transpose_a);
  CHECK(first.transpose_b);
  CHECK(std::string(second.name) == "gelu_forward");
}
