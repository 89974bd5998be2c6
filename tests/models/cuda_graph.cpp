// A micro-batch and a generated position captured in a CUDA graph: they enqueue, and neither allocate nor wait.
#include <tests/cuda_graph.h>
#include <tests/models/test_model.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

// Heads of 32 channels and rows of full vectors: in bf16 the kernels that training uses.
GptConfig even_config() {
  GptConfig config;
  config.n_layer = 2;
  config.n_head = 2;
  config.n_embd = 64;
  config.block_size = 40;
  config.vocab_size = 301;
  config.dropout = 0.1f;
  return config;
}

}  // namespace

TEST_CASE("gpt captured in a CUDA graph: a micro-batch, replayed with other tokens" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const DType precision : {DType::fp32, DType::bf16}) {
    for (const Recompute mode : {Recompute::none, Recompute::gelu_norm, Recompute::block}) {
      for (const GptConfig& config : {even_config(), odd_config()}) {
        CAPTURE(name_of(precision));
        CAPTURE(static_cast<int>(mode));
        CAPTURE(config.n_embd);
        const Stream stream;
        const BackendScope scope(device_context(static_cast<cudaStream_t>(stream)));
        TestModel model(config, {1e-4f}, 3, 8, precision, Gpt::Mode::training, 2, mode);
        const GptBatch captured = test_batch(config, 3, 8), replayed = test_batch(config, 3, 8, 0, 5000);
        const double expected = model.train_step(replayed, 3).ce_sum;  // chooses the products' algorithms, too
        const std::vector<float> gradients = model.gradient_copy();

        StepInfo step;
        step.denominator = model.denominator;
        const Batch batch = model.placed(captured, 0);
        Graph graph(stream, [&] {
          model.sums.reset(model.context);
          model.model.forward_backward(model.context, batch, step, model.sums);
        });
        CHECK(graph.only_device_work());
        graph.launch();
        CHECK(model.sums.read(model.context).ce_sum != expected);
        model.placed(replayed, 0);
        graph.launch();
        CHECK(model.sums.read(model.context).ce_sum == expected);
        CHECK(same_bits(model.gradient_copy(), gradients));
      }
    }
  }
}

TEST_CASE("gpt captured in a CUDA graph: evaluation and generation" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const GptConfig& config : {even_config(), odd_config()}) {
    CAPTURE(config.n_embd);
    const Stream stream;
    const BackendScope scope(device_context(static_cast<cudaStream_t>(stream)));
    TestModel model(config, {0, 0, 5.0f}, 3, 8, DType::bf16);
    const GptBatch rows = test_batch(config, 3, 8);
    const double loss = model.evaluate(rows).ce_sum;
    const std::vector<float> first = model.decode(3, 0), second = model.decode(5, 1);

    const Batch batch = model.placed(rows, 0);
    ConstTensor logits;
    Graph graph(stream, [&] {
      model.sums.reset(model.context);
      model.model.evaluate(model.context, batch, model.sums);
      model.model.decode(model.context, 3, 0);
      logits = model.model.decode(model.context, 5, 1);
    });
    CHECK(graph.only_device_work());
    graph.launch();
    CHECK(model.sums.read(model.context).ce_sum == loss);
    CHECK(same_bits(download<float>(model.context, logits), second));
    CHECK_FALSE(same_bits(first, second));
  }
}
