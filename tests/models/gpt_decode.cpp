// Generation with the key-value cache against the forward of the whole sequence.
#include <tests/models/test_model.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

// Feeds the sequence token by token; at each position the logits must be the reference's of the whole sequence.
void check_positions(const GptConfig& config, const LossSettings& loss, DType precision, double tolerance) {
  TestModel model(config, loss, 1, config.block_size, precision);
  const GptBatch batch = test_batch(config, 1, config.block_size);
  const NamedValues weights = test_weights(model.model.parameters(), precision);
  const reference::GptResult expected = reference::Gpt(config, loss, weights).forward(batch);
  for (std::int64_t position = 0; position < config.block_size; ++position) {
    CAPTURE(position);
    const std::vector<float> logits = model.decode(batch.inputs[position], position);
    REQUIRE(static_cast<std::int64_t>(logits.size()) == config.vocab_size);
    const double* wanted = &expected.logits[position * config.vocab_size];
    for (std::int64_t j = 0; j < config.vocab_size; ++j) {
      CHECK(std::abs(logits[j] - wanted[j]) <= on_backend(tolerance));
    }
  }
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("gpt decode: logits at each position are those of the whole sequence") {
  GptConfig config = odd_config();
  config.block_size = 70;
  check_positions(config, {}, DType::fp32, 2e-5);
  config.block_size = 9;
  config.bias = false;
  config.tie_embeddings = false;
  config.vocab_multiple = 8;
  check_positions(config, {}, DType::fp32, 2e-5);
  check_positions(config, {0, 0, 2.0f}, DType::fp32, 2e-5);
}

TEST_CASE_ON_EACH_BACKEND("gpt decode: bf16 stays near the reference") {
  // Logits here are up to about 8, whose bf16 neighbours stand 1/32 apart, and come through some ten roundings a block.
  check_positions(odd_config(), {}, DType::bf16, 0.2);
}

TEST_CASE_ON_EACH_BACKEND("gpt decode: a sequence started again does not see the one before") {
  const GptConfig config = odd_config();
  TestModel model(config, {}, 1, 8);
  const auto last_logits = [&](std::initializer_list<std::int32_t> tokens) {
    std::vector<float> logits;
    std::int64_t position = 0;
    for (const std::int32_t token : tokens) logits = model.decode(token, position++);
    return logits;
  };
  const std::vector<float> first = last_logits({1, 2, 3});
  last_logits({9, 8, 7, 6, 5, 4});
  CHECK(same_bits(last_logits({1, 2, 3}), first));
}

TEST_CASE_ON_EACH_BACKEND("gpt decode: positions and tokens outside of the model are refused") {
  const GptConfig config = odd_config();
  TestModel model(config, {}, 1, 8);
  CHECK_THROWS_WITH_AS(model.model.decode(model.context, 1, 8), "decode: position 8 is not below block_size 8", Error);
  CHECK_THROWS_AS(model.model.decode(model.context, 1, -1), Error);
  CHECK_THROWS_WITH_AS(model.model.decode(model.context, 17, 0), "decode: token 17 is not below vocab_size 17", Error);
  CHECK_THROWS_AS(Gpt(config, DType::fp32, {}).decode(model.context, 1, 0), Error);
}
