// The fp64 reference against finite differences: what everything else is tested against has to be right itself.
#include <tests/models/test_model.h>

using namespace greyhound;
using namespace greyhound::test;

namespace {

struct Case {
  const char* what;
  GptConfig config;
  LossSettings loss;
};

double objective(const Case& test, const NamedValues& weights, const GptBatch& batch, double denominator,
                 const reference::GptMasks& masks) {
  const reference::GptResult result = reference::Gpt(test.config, test.loss, weights, masks).forward(batch);
  return (result.ce_sum + static_cast<double>(test.loss.z_loss_multiplier) * result.z_sum) / denominator;
}

// Central differences of a few elements of each parameter, the largest gradients among them.
void check_against_differences(const Case& test, const reference::GptMasks& masks = {}) {
  CAPTURE(test.what);
  const ParameterList list = Gpt(test.config, DType::fp32, test.loss).parameters();
  NamedValues weights = test_weights(list);
  const GptBatch batch = test_batch(test.config, 2, 5, 0.3);
  const double denominator = 7, step = 1e-5;
  const NamedValues gradients =
      reference::Gpt(test.config, test.loss, weights, masks).forward_backward(batch, denominator).gradients;
  for (const Parameter& parameter : list.all()) {
    CAPTURE(parameter.name);
    reference::Values& values = weights[parameter.name];
    const reference::Values& gradient = gradients.at(parameter.name);
    const auto at_largest = std::max_element(gradient.begin(), gradient.end(),
                                             [](double a, double b) { return std::abs(a) < std::abs(b); });
    for (const std::size_t i : {std::size_t{0}, values.size() / 3, values.size() / 2,
                                static_cast<std::size_t>(at_largest - gradient.begin())}) {
      const double kept = values[i];
      values[i] = kept + step;
      const double above = objective(test, weights, batch, denominator, masks);
      values[i] = kept - step;
      const double below = objective(test, weights, batch, denominator, masks);
      values[i] = kept;
      CHECK(gradient[i] == doctest::Approx((above - below) / (2 * step)).epsilon(1e-6).scale(0.01));
    }
  }
}

Case plain() { return {"plain", odd_config(), {}}; }

}  // namespace

TEST_CASE("gpt reference: gradients agree with finite differences") {
  Case everything = plain();
  everything.what = "z-loss, smoothing, softcap, padded vocabulary";
  everything.config.vocab_multiple = 8;
  everything.loss = {1e-2f, 0.1f, 3.0f};
  Case untied = plain();
  untied.what = "untied, no biases";
  untied.config.tie_embeddings = false;
  untied.config.bias = false;
  for (const Case& test : {plain(), everything, untied}) check_against_differences(test);
}

TEST_CASE("gpt reference: gradients agree with finite differences under dropout") {
  reference::GptMasks masks;
  const auto kept = [](std::uint64_t stream, std::int64_t i) { return noise(stream, i) < -0.4 ? 0.0 : 1 / 0.7; };
  masks.element = [&](int site, std::int64_t row, std::int64_t column) {
    return kept(2000 + site, row * 100 + column);
  };
  masks.attention = [&](int site, std::int64_t row, std::int64_t head, std::int64_t s) {
    return kept(3000 + site, (row * 100 + head) * 100 + s);
  };
  check_against_differences(plain(), masks);
}

TEST_CASE("gpt reference: finite differences on a row of the tied matrix that is used both ways") {
  const Case test = plain();
  NamedValues weights = test_weights(Gpt(test.config, DType::fp32, test.loss).parameters());
  GptBatch batch = test_batch(test.config, 1, 5);
  batch.inputs = {3, 7, 3, 1, 3};
  batch.targets = {7, 3, 1, 3, 9};  // row 3 is looked up, and is a target of the head
  const NamedValues gradients = reference::Gpt(test.config, test.loss, weights).forward_backward(batch, 5).gradients;
  for (std::int64_t k = 0; k < test.config.n_embd; ++k) {
    double& value = weights["wte.weight"][3 * test.config.n_embd + k];
    const double kept = value, step = 1e-5;
    value = kept + step;
    const double above = objective(test, weights, batch, 5, {});
    value = kept - step;
    const double below = objective(test, weights, batch, 5, {});
    value = kept;
    CHECK(gradients.at("wte.weight")[3 * test.config.n_embd + k] ==
          doctest::Approx((above - below) / (2 * step)).epsilon(1e-6).scale(0.01));
  }
}
