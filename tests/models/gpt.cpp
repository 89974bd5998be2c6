// The whole model against the fp64 reference: loss, gradients, and the order in which they complete.
#include <tests/models/test_model.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

struct Case {
  const char* what;
  GptConfig config;
  LossSettings loss;
  double ignored = 0;
};

std::vector<Case> cases() {
  const auto odd = [](auto change) {
    GptConfig config = odd_config();
    change(config);
    return config;
  };
  const GptConfig plain = odd_config();
  std::vector<Case> result = {
      {"C = 12, 3 heads, T = 5, V = 17", plain},
      {"no biases", odd([](GptConfig& c) { c.bias = false; })},
      {"untied head", odd([](GptConfig& c) { c.tie_embeddings = false; })},
      {"untied head, no biases, padded",
       odd([](GptConfig& c) { c.tie_embeddings = false, c.bias = false, c.vocab_multiple = 8; })},
      {"tied and padded to 128", odd([](GptConfig& c) { c.vocab_multiple = 128; })},
      {"one head, one layer", odd([](GptConfig& c) { c.n_head = 1, c.n_layer = 1; })},
      {"V = 1", odd([](GptConfig& c) { c.vocab_size = 1; })},
      {"z-loss", plain, {1e-2f}},
      {"label smoothing", plain, {0, 0.1f}},
      {"softcap", plain, {0, 0, 3.0f}},
      {"ignored targets", plain, {}, 0.6},
      {"all of them", odd([](GptConfig& c) { c.vocab_multiple = 8; }), {1e-3f, 0.2f, 2.0f}, 0.4},
  };
  return result;
}

void check_report(const loss::Report& report, const reference::GptResult& expected, double tolerance) {
  tolerance = on_backend(tolerance);
  CHECK(report.n_valid == expected.n_valid);
  CHECK(report.nonfinite_rows == 0);
  CHECK(report.ce_sum == doctest::Approx(expected.ce_sum).epsilon(tolerance).scale(1e-3));
  CHECK(report.z_sum == doctest::Approx(expected.z_sum).epsilon(tolerance).scale(1e-3));
}

void check_gradients(const TestModel& test, const NamedValues& expected, double tolerance) {
  for (const Parameter& parameter : test.model.parameters().all()) {
    CAPTURE(parameter.name);
    const Difference difference = gradient_difference(test, parameter, expected);
    CHECK(difference.largest <= on_backend(tolerance) * difference.scale);
  }
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("gpt: loss and gradients of odd configurations agree with the fp64 reference") {
  for (const Case& test : cases()) {
    CAPTURE(test.what);
    TestModel model(test.config, test.loss, 3, 5);
    const GptBatch batch = test_batch(test.config, 3, 5, test.ignored);
    const NamedValues weights = test_weights(model.model.parameters());
    const reference::GptResult expected = reference::Gpt(test.config, test.loss, weights)
                                              .forward_backward(batch, static_cast<double>(valid_targets(batch)));
    // Sums of at most 48 products of numbers near 1, a few layers deep: 1e-5 is some hundred roundings of fp32.
    check_report(model.train_step(batch, 3), expected, 1e-5);
    check_gradients(model, expected.gradients, test.config.vocab_size == 1 ? 1.0 : 1e-5);
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: gaps and padded rows of the gradient stay zero") {
  GptConfig config = odd_config();
  config.vocab_multiple = 8;
  for (const bool tied : {true, false}) {
    config.tie_embeddings = tied;
    TestModel model(config, {}, 4, 5);
    model.train_step(test_batch(config, 4, 5), 2);
    std::vector<float> rest = model.gradient_copy();
    for (const Parameter& parameter : model.model.parameters().all()) {
      std::fill_n(rest.begin() + parameter.offset, parameter.logical_rows * parameter.shape.columns(), 0.0f);
    }
    CHECK(largest_magnitude(rest) == 0);
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: gradients are reported complete from the front of the block to its back, once each") {
  for (const bool tied : {true, false}) {
    GptConfig config = odd_config();
    config.tie_embeddings = tied;
    TestModel model(config, {}, 2, 5);
    const GptBatch batch = test_batch(config, 2, 5);
    const reference::GptResult reference =
        reference::Gpt(config, {}, test_weights(model.model.parameters())).forward_backward(batch, 10);
    std::int64_t end = 0;
    std::vector<float> when_reported(model.gradients.elements(), NAN);
    StepInfo step;
    step.gradient_complete = [&](GradientRange range) {
      CHECK(range.begin == end);
      CHECK(range.end > range.begin);
      end = range.end;
      const std::vector<float> now =
          download<float>(model.context, model.gradients.slice(range.begin, {range.end - range.begin}));
      std::copy(now.begin(), now.end(), when_reported.begin() + range.begin);
    };
    model.train_step(batch, 2, step);
    CHECK(end == model.gradients.elements());
    // What was there when a range was reported is what is there at the end: nothing was added later.
    CHECK(same_bits(when_reported, model.gradient_copy()));
    check_gradients(model, reference.gradients, 1e-5);
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: loss agrees with the fp64 reference around the edges of tiles") {
  GptConfig config = odd_config();
  config.block_size = 1000;
  for (const std::int64_t tokens : {1, 2, 17, 63, 64, 65, 127, 129}) {
    CAPTURE(tokens);
    TestModel model(config, {}, 2, tokens);
    const GptBatch batch = test_batch(config, 2, tokens);
    const NamedValues weights = test_weights(model.model.parameters());
    const reference::GptResult expected =
        reference::Gpt(config, {}, weights).forward_backward(batch, static_cast<double>(2 * tokens));
    check_report(model.evaluate(batch), expected, 1e-5);
    check_report(model.train_step(batch, 2), expected, 1e-5);
    check_gradients(model, expected.gradients, 2e-5);
  }
}

SLOW_TEST_CASE_ON_EACH_BACKEND("gpt: T = 1000 agrees with the fp64 reference") {
  GptConfig config = odd_config();
  config.block_size = 1000;
  TestModel model(config, {}, 1, 1000);
  const GptBatch batch = test_batch(config, 1, 1000);
  const NamedValues weights = test_weights(model.model.parameters());
  const reference::GptResult expected = reference::Gpt(config, {}, weights).forward_backward(batch, 1000);
  check_report(model.train_step(batch, 1), expected, 1e-5);
  check_gradients(model, expected.gradients, 5e-5);
}

TEST_CASE_ON_EACH_BACKEND("gpt: bf16 stays near fp32") {
  // Each bf16 rounding is up to 2^-9 relative. About ten of them lie in a row on the way through a block, in each of
  // two blocks and back again; independent, they add up to sqrt(40) 2^-9 = 1.2 %, and largest errors of hundreds of
  // elements stand at about four times that.
  for (const bool tied : {true, false}) {
    GptConfig config = odd_config();
    config.tie_embeddings = tied;
    TestModel model(config, {1e-4f}, 4, 8, DType::bf16);
    const GptBatch batch = test_batch(config, 4, 8, 0.2);
    const NamedValues weights = test_weights(model.model.parameters(), DType::bf16);
    const reference::GptResult expected =
        reference::Gpt(config, {1e-4f}, weights).forward_backward(batch, static_cast<double>(valid_targets(batch)));
    const loss::Report report = model.train_step(batch, 4);
    check_report(report, expected, 1e-2);
    check_gradients(model, expected.gradients, 5e-2);
    CHECK(model.evaluate(batch).ce_sum == doctest::Approx(report.ce_sum).epsilon(1e-6));
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: bf16 stays near fp32 with heads of 64 channels, several tiles of attention") {
  GptConfig config = odd_config();
  config.n_layer = 1;
  config.n_head = 2;
  config.n_embd = 128;
  config.block_size = 150;
  config.vocab_size = 301;
  TestModel model(config, {}, 2, 150, DType::bf16);
  const GptBatch batch = test_batch(config, 2, 150, 0.1);
  // Ten times as wide as the models above: with matrices of their size, softmax would be a choice of one position.
  NamedValues weights = test_weights(model.model.parameters(), DType::bf16);
  for (const Parameter& parameter : model.model.parameters().all()) {
    if (!parameter.decay) continue;
    for (double& value : weights[parameter.name]) value *= 0.25;
  }
  model.set(weights);
  const reference::GptResult expected =
      reference::Gpt(config, {}, weights).forward_backward(batch, static_cast<double>(valid_targets(batch)));
  check_report(model.train_step(batch, 2), expected, 1e-2);
  check_gradients(model, expected.gradients, 5e-2);
}

TEST_CASE_ON_EACH_BACKEND("gpt: what a batch has to be is said with the numbers") {
  const GptConfig config = odd_config();
  TestModel model(config, {}, 2, 5);
  const auto step = [&](std::int64_t batch, std::int64_t tokens) {
    model.train_step(test_batch(config, batch, tokens), batch);
  };
  CHECK_THROWS_WITH_AS(step(3, 5), "batch: [3, 5] is larger than the planned [2, 5]", Error);
  CHECK_THROWS_WITH_AS(step(2, 6), "batch: [2, 6] is larger than the planned [2, 5]", Error);
  CHECK_THROWS_WITH_AS(step(1, 9), "batch: 9 tokens in a row, block_size is 8", Error);

  const GptBatch batch = test_batch(config, 2, 5);
  CHECK_THROWS_AS(model.model.forward_backward(model.context, model.placed(batch, 0), {}, model.sums), Error);

  TestModel evaluation(config, {}, 2, 5, DType::fp32, Gpt::Mode::evaluation);
  CHECK_THROWS_WITH_AS(evaluation.train_step(batch, 2), "model: was planned for evaluation alone", Error);
  CHECK(evaluation.evaluate(batch).ce_sum == doctest::Approx(model.evaluate(batch).ce_sum).epsilon(1e-6));
  CHECK(evaluation.arena.plan().bytes() < model.arena.plan().bytes());
}

TEST_CASE_ON_EACH_BACKEND("gpt: a token outside of the vocabulary is recorded, never read") {
  const GptConfig config = odd_config();
  TestModel model(config, {}, 2, 5);
  for (const std::int32_t bad : {17, -1, 2000000000}) {
    GptBatch batch = test_batch(config, 2, 5);
    batch.inputs[7] = bad;
    CHECK_THROWS_AS(model.train_step(batch, 2), Error);
    const loss::Report report = model.sums.read_unchecked(model.context);
    CHECK(report.errors.count == 1);
    CHECK(report.errors.first_row == 7);
    CHECK(report.errors.value == bad);
  }
}

TEST_CASE("gpt: operations per token count the products' weights and causal attention") {
  GptConfig config;
  const Gpt model(config, DType::bf16, {});
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  CHECK(model.flops_per_token(1024) == doctest::Approx(6 * weights + 12.0 * 6 * 768 * 1025));
}
