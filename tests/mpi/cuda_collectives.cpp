// Collectives on device memory, run by two ranks with a GPU each.
#include <doctest/doctest.h>

#include <vector>

#include "ranks.h"

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// Device memory that holds what the host gives it.
template <class T>
class Buffer {
 public:
  Buffer(const Context& context, const std::vector<T>& values)
      : context_(context),
        tensor_(allocate(context.device(), values.size() * sizeof(T)), dtype_of<T>,
                {static_cast<std::int64_t>(values.size())}, context.device()) {
    copy_bytes(context, tensor_.data, context.device(), values.data(), Device::cpu(), tensor_.bytes());
    context.synchronize();
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { deallocate(tensor_.device, tensor_.data); }

  const Tensor& tensor() const { return tensor_; }
  std::vector<T> read() const {
    std::vector<T> values(static_cast<std::size_t>(tensor_.elements()));
    copy_bytes(context_, values.data(), Device::cpu(), tensor_.data, tensor_.device, tensor_.bytes());
    context_.synchronize();
    return values;
  }

 private:
  const Context context_;
  Tensor tensor_;
};

// Whole numbers, whose sums are exact in any order.
template <class T>
std::vector<T> numbers(std::int64_t count, int rank) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = static_cast<T>((i * 7 + rank * 13) % 101);
  }
  return values;
}

}  // namespace

TEST_CASE("NCCL: all_reduce of device memory, in order with the context's stream") {
  Gpus* const gpu = gpus();
  if (gpu == nullptr) return;
  Communicator& communicator = *gpu->communicator;
  for (const std::int64_t n : {1, 1000, 3000001}) {
    Buffer<float> values(gpu->context, numbers<float>(n, communicator.rank()));
    communicator.all_reduce(gpu->context, values.tensor());
    std::vector<float> expected(static_cast<std::size_t>(n));
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const std::vector<float> part = numbers<float>(n, rank);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += part[i];
    }
    CHECK(values.read() == expected);
  }
  Buffer<std::int64_t> largest(gpu->context, {100 + communicator.rank()});
  communicator.all_reduce(gpu->context, largest.tensor(), ReduceOp::max);
  CHECK(largest.read()[0] == 100 + communicator.size() - 1);
  CHECK_NOTHROW(communicator.check());
}

TEST_CASE("NCCL: several started at once, and the context's stream goes on after join") {
  Gpus* const gpu = gpus();
  if (gpu == nullptr) return;
  Communicator& communicator = *gpu->communicator;
  communicator.take_exposed_ms();
  const std::int64_t n = 1 << 20;
  Buffer<float> whole(gpu->context, numbers<float>(n, communicator.rank()));
  Buffer<float> pieces(gpu->context, numbers<float>(n, communicator.rank()));
  communicator.all_reduce(gpu->context, whole.tensor());
  const std::int64_t cuts[] = {0, 64, 400000, n};
  for (int i = 0; i < 3; ++i) {
    communicator.start_all_reduce(gpu->context, pieces.tensor().slice(cuts[i], {cuts[i + 1] - cuts[i]}));
  }
  communicator.join(gpu->context);
  CHECK(pieces.read() == whole.read());
  CHECK(communicator.take_exposed_ms() > 0);
}

TEST_CASE("NCCL: reduce_scatter, all_gather, broadcast, barrier") {
  Gpus* const gpu = gpus();
  if (gpu == nullptr) return;
  Communicator& communicator = *gpu->communicator;
  const int size = communicator.size(), rank = communicator.rank();
  const std::int64_t n = 1001;
  Buffer<float> input(gpu->context, numbers<float>(n * size, rank));
  Buffer<float> part(gpu->context, std::vector<float>(n)), all(gpu->context, std::vector<float>(n * size));
  communicator.reduce_scatter(gpu->context, input.tensor(), part.tensor());
  communicator.all_gather(gpu->context, part.tensor(), all.tensor());
  std::vector<float> expected(static_cast<std::size_t>(n * size));
  for (int r = 0; r < size; ++r) {
    const std::vector<float> of_rank = numbers<float>(n * size, r);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += of_rank[i];
  }
  CHECK(all.read() == expected);

  Buffer<std::int32_t> from_last(gpu->context, std::vector<std::int32_t>(1000, rank));
  communicator.broadcast(gpu->context, from_last.tensor(), size - 1);
  CHECK(from_last.read() == std::vector<std::int32_t>(1000, size - 1));
  communicator.barrier(gpu->context);
}

TEST_CASE("NCCL: bf16 sums, and host memory beside device memory") {
  Gpus* const gpu = gpus();
  if (gpu == nullptr) return;
  Communicator& communicator = *gpu->communicator;
  Buffer<bf16> rounded(gpu->context, std::vector<bf16>(1000, from_float<bf16>(1.5f)));
  communicator.all_reduce(gpu->context, rounded.tensor());
  CHECK(to_float(rounded.read()[999]) == 1.5f * static_cast<float>(communicator.size()));

  std::int64_t on_host = communicator.rank();
  communicator.all_reduce(gpu->context, tensor(&on_host, DType::int64, {1}));
  CHECK(on_host == communicator.size() * (communicator.size() - 1) / 2);
  CHECK_FALSE(communicator.failed());
}
