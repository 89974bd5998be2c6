#include <greyhound/core/comm/communicator.h>

#include <doctest/doctest.h>

using namespace greyhound;

TEST_CASE("single rank: every collective is the identity") {
  const std::unique_ptr<Communicator> communicator = make_single_rank();
  const Context context = Context::cpu(1);
  CHECK(communicator->rank() == 0);
  CHECK(communicator->size() == 1);
  CHECK(communicator->is_root());

  float data[3] = {1, 2, 3}, out[3] = {};
  const Tensor tensor(data, DType::fp32, {3}), other(out, DType::fp32, {3});
  communicator->all_reduce(context, tensor);
  communicator->all_reduce(context, tensor, ReduceOp::max);
  communicator->broadcast(context, tensor);
  communicator->barrier(context);
  CHECK(data[2] == 3);
  communicator->reduce_scatter(context, tensor, other);
  CHECK(out[2] == 3);
  data[0] = 9;
  communicator->all_gather(context, tensor, other);
  CHECK(out[0] == 9);
  communicator->reduce_scatter(context, tensor, tensor);  // in place
  CHECK(data[0] == 9);
  CHECK_THROWS_WITH_AS(communicator->broadcast(context, tensor, 1), "broadcast: root 1 of 1 rank", Error);
  CHECK_THROWS_AS(communicator->all_gather(context, tensor, Tensor(out, DType::fp32, {2})), Error);
}
