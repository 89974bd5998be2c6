// What backward makes again instead of finding it kept: the same bits in every mode, and less memory in each.
#include <tests/models/test_model.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

constexpr Recompute modes[] = {Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block};

struct Case {
  const char* what;
  bool tied, bias;
  float dropout;
};
constexpr Case cases[] = {{"tied, bias", true, true, 0},
                          {"tied, bias, dropout", true, true, 0.3f},
                          {"untied, no bias, dropout", false, false, 0.3f},
                          {"untied, no bias", false, false, 0},
                          {"untied, bias, dropout", false, true, 0.3f},
                          {"tied, no bias", true, false, 0}};

// What two steps of two micro-batches and an evaluation between them leave: sums of losses, then all gradients.
struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients;
};

Trace trace(const GptConfig& config, DType precision, Recompute recompute) {
  TestModel model(config, {1e-4f}, 3, 7, precision, Gpt::Mode::training, 2, recompute);
  const GptBatch batch = test_batch(config, 5, 7, 0.2), other = test_batch(config, 2, 6, 0, 5000);
  Trace result;
  for (std::uint64_t step = 0; step < 2; ++step) {
    StepInfo info;
    info.seed = 5;
    info.step = step;
    result.losses.push_back(model.train_step(batch, 3, info).ce_sum);
    result.gradients.push_back(model.gradient_copy());
    result.losses.push_back(model.evaluate(other).ce_sum);
  }
  return result;
}

bool same_trace(const Trace& a, const Trace& b) {
  return a.losses == b.losses && same_bits(a.gradients[0], b.gradients[0]) && same_bits(a.gradients[1], b.gradients[1]);
}

// Bytes of activations for micro-batches of [B, T], without the operators' scratch.
std::size_t kept_bytes(const Context& context, const GptConfig& config, DType precision, Recompute recompute,
                       std::int64_t batch, std::int64_t tokens, Gpt::Mode mode = Gpt::Mode::training) {
  ArenaPlan plan;
  Gpt(config, precision, {}, recompute).plan(context, plan, batch, tokens, mode);
  std::size_t bytes = 0;
  for (const ArenaPlan::Entry& entry : plan.entries()) {
    if (entry.region == "activations" && entry.name != "workspace") bytes += entry.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("gpt recompute: the same bits of losses and gradients in every mode") {
  for (const DType precision : {DType::fp32, DType::bf16}) {
    for (const Case& test : cases) {
      GptConfig config = odd_config();
      config.n_layer = 3;
      config.tie_embeddings = test.tied;
      config.bias = test.bias;
      config.dropout = test.dropout;
      CAPTURE(name_of(precision));
      CAPTURE(test.what);
      const Trace expected = trace(config, precision, Recompute::none);
      CHECK(largest_magnitude(expected.gradients[0]) > 0);
      CHECK(same_bits(expected.gradients[0], expected.gradients[1]) == (test.dropout == 0));
      for (const Recompute mode : modes) {
        CAPTURE(static_cast<int>(mode));
        CHECK(same_trace(trace(config, precision, mode), expected));
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt recompute: rows of full vectors, several tiles of attention, one layer") {
  GptConfig config;
  config.n_head = 2;
  config.n_embd = 64;
  config.block_size = 70;
  config.vocab_size = 301;
  config.dropout = 0.1f;
  const GptBatch batch = test_batch(config, 2, 70, 0.1);
  for (const DType precision : {DType::fp32, DType::bf16}) {
    for (const std::int64_t layers : {1, 2}) {
      config.n_layer = layers;
      CAPTURE(layers);
      std::vector<float> expected;
      for (const Recompute mode : modes) {
        CAPTURE(static_cast<int>(mode));
        TestModel model(config, {}, 2, 70, precision, Gpt::Mode::training, 2, mode);
        model.train_step(batch, 2);
        if (mode == Recompute::none) expected = model.gradient_copy();
        CHECK(same_bits(model.gradient_copy(), expected));
      }
    }
  }
}

TEST_CASE("gpt recompute: GPT-2 small keeps what the modes say, 64 rows of 1024 tokens in bf16") {
  const GptConfig config;
  const Context context = Context::cpu(1);
  // Planned, never allocated. In [B T, C]: 16, 12 or 10 of each of 12 blocks and what they share; or 12 inputs and 15
  // of one block. Embedding, head's input and the gradient of the residual stream are three more.
  const std::size_t unit = 64 * 1024 * 768 * 2, statistics = 64 * 1024 * (12 + 4) * 4, last = 64 * 1024 * 2 * 4;
  const auto bytes = [&](Recompute mode) { return kept_bytes(context, config, DType::bf16, mode, 64, 1024); };
  CHECK(bytes(Recompute::none) == (12 * 16 + 3) * unit + 12 * statistics + last);
  CHECK(bytes(Recompute::gelu) == (12 * 12 + 4 + 3) * unit + 12 * statistics + last);
  CHECK(bytes(Recompute::gelu_norm) == (12 * 10 + 4 + 3) * unit + 12 * statistics + last);
  CHECK(bytes(Recompute::block) == (12 + 15 + 3) * unit + statistics + last);
  // Evaluation alone: what is alive at once in one block, and the residual stream.
  const std::size_t evaluation =
      kept_bytes(context, config, DType::bf16, Recompute::none, 64, 1024, Gpt::Mode::evaluation);
  CHECK(evaluation == 12 * unit + statistics + last);
}

TEST_CASE("gpt recompute: each mode takes less memory than the one before") {
  const Context context = Context::cpu(1);
  for (const DType precision : {DType::fp32, DType::bf16}) {
    for (const std::int64_t layers : {2, 3, 12}) {
      GptConfig config = odd_config();
      config.n_layer = layers;
      CAPTURE(layers);
      std::size_t before = SIZE_MAX;
      for (const Recompute mode : modes) {
        const std::size_t bytes = kept_bytes(context, config, precision, mode, 16, 8);
        CHECK(bytes < before);
        before = bytes;
      }
    }
  }
}
