// What a step of training must not depend on: micro-batches, threads, evaluation in between; and dropout.
#include <tests/models/test_model.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

GptConfig dropout_config(float probability) {
  GptConfig config = odd_config();
  config.dropout = probability;
  return config;
}

// Dropout as kernels/elementwise.h and kernels/attention.h define it, for the reference.
reference::GptMasks masks(float probability, std::uint64_t seed, std::uint64_t step) {
  const auto factor = [=](int site, std::uint64_t low, std::uint64_t row, std::int64_t word) {
    const Philox philox{mix_key(mix_key(seed, step), static_cast<std::uint64_t>(site))};
    return uniform(philox(low, row)[word]) >= probability ? 1.0 / (1.0 - probability) : 0.0;
  };
  reference::GptMasks result;
  result.element = [=](int site, std::int64_t row, std::int64_t column) {
    return factor(site, column / 4, row, column % 4);
  };
  result.attention = [=](int site, std::int64_t row, std::int64_t head, std::int64_t s) {
    return factor(site, static_cast<std::uint64_t>(head) << 32 | static_cast<std::uint64_t>(s / 4), row, s % 4);
  };
  return result;
}

StepInfo step_info(std::uint64_t seed, std::uint64_t step) {
  StepInfo info;
  info.seed = seed;
  info.step = step;
  return info;
}

void check_close(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  CHECK(largest_difference(a, b) <= on_backend(tolerance) * largest_magnitude(a));
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("gpt: accumulation of 1 x 8 rows against 4 x 2 rows, 0 to 60 % of the targets ignored") {
  for (const double ignored : {0.0, 0.2, 0.6}) {
    for (const float dropout : {0.0f, 0.2f}) {
      CAPTURE(ignored);
      CAPTURE(dropout);
      const GptConfig config = dropout_config(dropout);
      const GptBatch batch = test_batch(config, 8, 5, ignored);
      TestModel whole(config, {1e-3f}, 8, 5), parts(config, {1e-3f}, 2, 5);
      const loss::Report one = whole.train_step(batch, 8, step_info(3, 11));
      const loss::Report four = parts.train_step(batch, 2, step_info(3, 11));
      CHECK(one.n_valid == valid_targets(batch));
      CHECK(four.n_valid == one.n_valid);
      CHECK(four.ce_sum == doctest::Approx(one.ce_sum).epsilon(1e-6));
      check_close(whole.gradient_copy(), parts.gradient_copy(), 1e-6);
      // Micro-batches that divide nothing, through the buffers of the larger plan.
      whole.train_step(batch, 3, step_info(3, 11));
      check_close(whole.gradient_copy(), parts.gradient_copy(), 1e-6);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: masks whose origin is on the device are those of seed, step and first row") {
  for (const DType precision : {DType::fp32, DType::bf16}) {
    const GptConfig config = dropout_config(0.2f);
    const GptBatch rows = test_batch(config, 3, 5);
    TestModel model(config, {}, 3, 5, precision);
    ArenaPlan plan;
    const auto slot = plan.add("batch", "dropout_origin", DType::int64, {2});
    const Arena arena(model.context, plan);
    StepInfo info = step_info(3, 11);
    info.denominator = model.denominator;
    upload(model.context, model.denominator, std::vector<float>{15});
    Batch batch = model.placed(rows, 6);
    const auto gradients = [&] {
      model.sums.reset(model.context);
      model.model.forward_backward(model.context, batch, info, model.sums);
      return model.gradient_copy();
    };
    const std::vector<float> expected = gradients();
    const DropoutOrigin origin = dropout_origin(3, 11, 6, 5);
    copy_bytes(model.context, arena[slot].data, arena[slot].device, &origin, Device::cpu(), sizeof origin);
    batch.dropout = static_cast<const DropoutOrigin*>(arena[slot].data);
    batch.first_row = 0;  // not looked at, nor is the step
    info.step = 12;
    CHECK(same_bits(gradients(), expected));
    batch.dropout = nullptr;
    CHECK_FALSE(same_bits(gradients(), expected));
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: the first micro-batch overwrites whatever the gradients held") {
  const GptConfig config = odd_config();
  const GptBatch batch = test_batch(config, 4, 5);
  TestModel model(config, {}, 2, 5);
  model.train_step(batch, 2);
  const std::vector<float> expected = model.gradient_copy();
  for (const Parameter& parameter : model.model.parameters().all()) {
    const Tensor gradient = ParameterList::view(model.gradients, parameter);
    upload(model.context, gradient, std::vector<float>(gradient.elements(), NAN));
  }
  model.train_step(batch, 2);
  CHECK(same_bits(model.gradient_copy(), expected));
}

TEST_CASE_ON_EACH_BACKEND("gpt: gradients under dropout agree with the reference with the same masks") {
  const GptConfig config = dropout_config(0.3f);
  TestModel model(config, {}, 3, 5);
  const GptBatch batch = test_batch(config, 3, 5);
  const loss::Report report = model.train_step(batch, 1, step_info(5, 2));
  const NamedValues weights = test_weights(model.model.parameters());
  const reference::GptResult expected =
      reference::Gpt(config, {}, weights, masks(0.3f, 5, 2)).forward_backward(batch, 15);
  CHECK(report.ce_sum == doctest::Approx(expected.ce_sum).epsilon(on_backend(1e-5)));
  for (const Parameter& parameter : model.model.parameters().all()) {
    CAPTURE(parameter.name);
    const Difference difference = gradient_difference(model, parameter, expected.gradients);
    CHECK(difference.largest <= on_backend(1e-5) * difference.scale);
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: dropout is reproducible, and differs between steps and seeds") {
  const GptConfig config = dropout_config(0.3f);
  TestModel model(config, {}, 2, 5);
  const GptBatch batch = test_batch(config, 2, 5);
  const auto gradients = [&](std::uint64_t seed, std::uint64_t step) {
    model.train_step(batch, 2, step_info(seed, step));
    return model.gradient_copy();
  };
  const std::vector<float> first = gradients(5, 2);
  CHECK_FALSE(same_bits(first, gradients(5, 3)));
  CHECK_FALSE(same_bits(first, gradients(6, 2)));
  CHECK(same_bits(first, gradients(5, 2)));
}

TEST_CASE_ON_EACH_BACKEND("gpt: without dropout seed and step do not matter, and evaluation drops nothing") {
  const GptConfig config = odd_config();
  const GptBatch batch = test_batch(config, 2, 5);
  TestModel model(config, {}, 2, 5), dropping(dropout_config(0.5f), {}, 2, 5);
  model.train_step(batch, 2, step_info(1, 1));
  const std::vector<float> first = model.gradient_copy();
  const loss::Report report = model.train_step(batch, 2, step_info(2, 9));
  CHECK(same_bits(first, model.gradient_copy()));
  CHECK(dropping.evaluate(batch).ce_sum == doctest::Approx(report.ce_sum).epsilon(1e-7));
  CHECK(dropping.train_step(batch, 2).ce_sum != report.ce_sum);
}

TEST_CASE_ON_EACH_BACKEND("gpt: evaluation and generation leave weights, gradients and the next step as they are") {
  const GptConfig config = dropout_config(0.2f);
  const GptBatch batch = test_batch(config, 4, 5), other = test_batch(config, 4, 5, 0, 5000);
  TestModel plain(config, {}, 2, 5), disturbed(config, {}, 2, 5);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const double expected = plain.train_step(batch, 2, step_info(1, step)).ce_sum;
    CHECK(disturbed.train_step(batch, 2, step_info(1, step)).ce_sum == expected);
    const std::vector<float> gradients = disturbed.gradient_copy(), weights = disturbed.weight_copy();
    disturbed.evaluate(rows_of(other, 0, 2));
    for (std::int32_t position = 0; position < 5; ++position) {
      disturbed.decode(other.inputs[position], position);
    }
    CHECK(same_bits(disturbed.gradient_copy(), gradients));
    CHECK(same_bits(disturbed.weight_copy(), weights));
  }
  CHECK(same_bits(disturbed.gradient_copy(), plain.gradient_copy()));
}

TEST_CASE("gpt: the same bits for any number of threads") {
  for (const DType precision : {DType::fp32, DType::bf16}) {
    GptConfig config = dropout_config(0.1f);
    config.n_embd = 48;
    config.block_size = 70;
    config.vocab_size = 301;
    const GptBatch batch = test_batch(config, 3, 70, 0.1);
    std::vector<float> expected;
    double loss = 0, evaluated = 0;
    for (const int threads : {1, 2, 4}) {
      CAPTURE(threads);
      TestModel model(config, {1e-4f}, 3, 70, precision, Gpt::Mode::training, threads);
      const loss::Report report = model.train_step(batch, 3);
      const double evaluation = model.evaluate(batch).ce_sum;
      if (threads == 1) {
        expected = model.gradient_copy();
        loss = report.ce_sum;
        evaluated = evaluation;
      }
      CHECK(report.ce_sum == loss);
      CHECK(evaluation == evaluated);
      CHECK(same_bits(model.gradient_copy(), expected));
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: a micro-batch smaller than planned fits, though its work may be cut into more pieces") {
  GptConfig config = odd_config();
  config.n_layer = 1;
  config.n_embd = 192;
  config.block_size = 210;
  // Sums over 1050 rows are made in 62 blocks of 17 rows, over 1020 rows in 64 of 16, and with this width they are what
  // takes most scratch.
  TestModel model(config, {}, 5, 210, DType::fp32, Gpt::Mode::training, 1);
  for (const std::int64_t tokens : {210, 204, 205, 64, 3, 1}) {
    for (const std::int64_t batch : {5, 1}) {
      CAPTURE(tokens);
      CAPTURE(batch);
      CHECK(model.train_step(test_batch(config, batch, tokens), batch).n_valid == batch * tokens);
      CHECK(model.evaluate(test_batch(config, batch, tokens)).n_valid == batch * tokens);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("gpt: the head in chunks under a small budget gives the same loss and gradients") {
  GptConfig config = odd_config();
  config.block_size = 40;
  config.vocab_size = 1001;
  const GptBatch batch = test_batch(config, 4, 40);
  LossSettings tight;
  const auto bytes_of = [&](const TestModel& model) {
    std::size_t bytes = 0;
    for (const ArenaPlan::Region& region : model.arena.plan().regions()) {
      if (region.name == "loss workspace") bytes = region.bytes;
    }
    return bytes;
  };
  TestModel whole(config, {}, 4, 40);
  const double expected = whole.train_step(batch, 4).ce_sum;
  tight.max_workspace_bytes = bytes_of(whole) - 80 * 1001 * 4;  // room for the logits of half of the 160 rows
  TestModel chunked(config, tight, 4, 40);
  CHECK(bytes_of(chunked) <= tight.max_workspace_bytes);
  CHECK(chunked.train_step(batch, 4).ce_sum == doctest::Approx(expected).epsilon(1e-6));
  check_close(whole.gradient_copy(), chunked.gradient_copy(), 1e-6);
}
