#include <doctest/doctest.h>
#include <greyhound/train/gradient_reducer.h>

#include <string>
#include <vector>

#include "test_files.h"
#include "toy_run.h"

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// Two ranks with the same gradients, one of which is this process: records what is sent, and doubles it at join().
class TwinRanks final : public Communicator {
 public:
  struct Sent {
    const void* data;
    DType dtype;
    std::int64_t elements;
  };

  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_reduce(const Context&, const Tensor& data, ReduceOp op) override {
    if (op == ReduceOp::sum) add_twin(data);
  }
  void reduce_scatter(const Context&, const ConstTensor&, const Tensor&) override { throw_usage("not here"); }
  void all_gather(const Context&, const ConstTensor&, const Tensor&) override { throw_usage("not here"); }
  void broadcast(const Context&, const Tensor&, int) override {}
  void barrier(const Context&) override {}
  void start_all_reduce(const Context&, const Tensor& data) override {
    sent.push_back({data.data, data.dtype, data.elements()});
    started_.push_back(data);
  }
  void join(const Context&) override {
    for (const Tensor& data : started_) add_twin(data);
    started_.clear();
    ++joins;
  }
  double take_exposed_ms() override { return 0; }
  void set_timeout(double) override {}
  void check() override {}
  bool failed() const override { return false; }

  std::vector<Sent> sent;
  int joins = 0;

 private:
  static void add_twin(const Tensor& data) {
    for (std::int64_t i = 0; i < data.elements(); ++i) {
      switch (data.dtype) {
        case DType::fp32: data.as<float>()[i] *= 2; break;
        case DType::fp64: data.as<double>()[i] *= 2; break;
        case DType::int64: data.as<std::int64_t>()[i] *= 2; break;
        case DType::bf16: data.as<bf16>()[i] = from_float<bf16>(2 * to_float(data.as<bf16>()[i])); break;
        default: throw_usage("not here");
      }
    }
  }

  std::vector<Tensor> started_;
};

// A block of gradients, and the ranges in which they complete.
struct Block {
  std::vector<float> values;
  TwinRanks ranks;
  Context context = Context::cpu(1);
  ArenaPlan plan;
  Arena arena;
  GradientReducer reducer;

  Block(std::int64_t elements, std::int64_t bucket_mb, DType dtype = DType::fp32)
      : values(static_cast<std::size_t>(elements)), reducer({dtype, bucket_mb, 0}) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i % 1000) / 1024;
    reducer.plan(plan, elements, ranks.size());
    arena = Arena(context, plan);
    reducer.bind(arena, tensor(values.data(), DType::fp32, {elements}));
  }

  void complete(const std::vector<std::int64_t>& ends) {
    const GradientHook hook = reducer.hook(context, ranks);
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      hook({begin, end});
      begin = end;
    }
  }

  std::vector<std::int64_t> sent_elements() const {
    std::vector<std::int64_t> elements;
    for (const TwinRanks::Sent& sent : ranks.sent) elements.push_back(sent.elements);
    return elements;
  }
};

constexpr std::int64_t mebi = 1 << 18;  // floats in a MiB

}  // namespace

TEST_CASE("gradient reducer: ranges are collected until they hold a bucket, the rest is the last one") {
  const std::vector<std::int64_t> ends = {3 * mebi, 3 * mebi + 64, 4 * mebi, 5 * mebi, 7 * mebi, 7 * mebi + 128};
  const auto buckets = [&](std::int64_t bucket_mb) {
    Block block(ends.back(), bucket_mb);
    const std::vector<float> before = block.values;
    block.complete(ends);
    const std::size_t early = block.ranks.sent.size();  // behind the backward pass
    block.reducer.finish(block.context, block.ranks);
    CHECK(early + 1 >= block.ranks.sent.size());
    CHECK(block.ranks.joins == 1);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < before.size(); ++i) wrong += block.values[i] != 2 * before[i];
    CHECK(wrong == 0);
    return block.sent_elements();
  };
  using Elements = std::vector<std::int64_t>;
  CHECK(buckets(2) == Elements{3 * mebi, 2 * mebi, 2 * mebi, 128});
  CHECK(buckets(0) == Elements{3 * mebi, 64, mebi - 64, mebi, 2 * mebi, 128});
  CHECK(buckets(3) == Elements{3 * mebi, 4 * mebi, 128});
  CHECK(buckets(1000) == Elements{7 * mebi + 128});
}

TEST_CASE("gradient reducer: bf16 on the wire is the sum of rounded gradients") {
  Block block(1000, 0, DType::bf16);
  CHECK(block.plan.bytes() >= 2000);
  const std::vector<float> before = block.values;
  block.complete({600, 1000});
  block.reducer.finish(block.context, block.ranks);
  CHECK(block.ranks.sent.size() == 2);
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(block.values[i] == 2 * to_float(from_float<bf16>(before[i])));
  }
  CHECK(Block(1000, 0).plan.bytes() == 0);  // fp32 goes from where it is
}

TEST_CASE("gradient reducer: one rank has nothing to send; gradients that were not reported are a mistake") {
  const std::unique_ptr<Communicator> alone = make_single_rank();
  Block block(1000, 0);
  CHECK_FALSE(static_cast<bool>(block.reducer.hook(block.context, *alone)));
  block.reducer.finish(block.context, *alone);
  CHECK(block.values[0] == 1);

  block.complete({400});
  CHECK(contains(error_of([&] { block.reducer.finish(block.context, block.ranks); }),
                 "400 of 1000 were reported complete"));
  const GradientHook hook = block.reducer.hook(block.context, block.ranks);
  CHECK_THROWS_AS(hook({64, 128}), Error);
}

TEST_CASE("trainer: gradients travel in the last micro-batch alone, an untied head's first") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    TwinRanks ranks;
    // 4 rows of 9 tokens over two ranks, one at a time.
    ToyRun run(toy({concat("model.tie_embeddings=", tied ? "true" : "false"), "train.batch_tokens=36",
                    "train.micro_batch=1", "distributed.bucket_mb=0"}),
               1, &ranks);
    REQUIRE(run.batch.accumulation == 2);
    run.trainer->compute_gradients();
    // Head, ln_f, two blocks, embeddings; a tied head is an embedding.
    REQUIRE(ranks.sent.size() == (tied ? 4 : 5));
    const ParameterList& parameters = run.buffers.model.parameters();
    CHECK(ranks.sent.front().data == run.gradient(tied ? "ln_f.weight" : "lm_head.weight").data);
    CHECK(ranks.sent.back().data == run.gradient("wpe.weight").data);
    const std::int64_t last = ranks.sent.back().elements;
    CHECK(parameters["wpe.weight"].offset + last == parameters.block_elements());
    CHECK(parameters["wte.weight"].offset > parameters["wpe.weight"].offset);
  }
}
