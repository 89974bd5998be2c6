// A small model with its arena and weights, for the tests of models/.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/core/arena.h>
#include <greyhound/core/rng.h>
#include <greyhound/models/gpt.h>
#include <tests/reference/gpt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace greyhound::test {

using reference::GptBatch;
using reference::NamedValues;

// C = 12, 3 heads, V = 17: nothing is a multiple of a vector.
inline GptConfig odd_config() {
  GptConfig config;
  config.n_layer = 2;
  config.n_head = 3;
  config.n_embd = 12;
  config.block_size = 8;
  config.vocab_size = 17;
  config.vocab_multiple = 1;
  return config;
}

// A number in [-1, 1), a multiple of 2^-12, that depends on stream and index alone.
inline double noise(std::uint64_t stream, std::uint64_t index) {
  return static_cast<double>(Philox{mix_key(7, stream)}(index, 0)[0] >> 19) / 4096 - 1;
}

// Weights large enough that softmax, GELU and the norms are away from their linear parts. Multiples of powers of two,
// so that they are exact in fp32; bf16 rounds them once more.
inline NamedValues test_weights(const ParameterList& list, DType precision = DType::fp32) {
  NamedValues weights;
  std::uint64_t stream = 0;
  for (const Parameter& parameter : list.all()) {
    ++stream;
    reference::Values& values = weights[parameter.name];
    values.assign(parameter.shape.elements(), 0.0);
    const std::int64_t logical = parameter.logical_rows * parameter.shape.columns();
    for (std::int64_t i = 0; i < logical; ++i) {
      double value = 0.5 * noise(stream, i);
      if (parameter.init == Init::ones) value += 1;
      if (precision == DType::bf16) value = to_float(from_float<bf16>(static_cast<float>(value)));
      values[i] = value;
    }
  }
  return weights;
}

inline GptBatch test_batch(const GptConfig& config, std::int64_t batch, std::int64_t tokens, double ignored = 0,
                           std::uint64_t stream = 1000) {
  GptBatch result{batch, tokens, {}, {}};
  for (std::int64_t i = 0; i < batch * tokens; ++i) {
    const auto draw = [&](std::uint64_t of) { return (noise(stream + of, i) + 1) / 2; };
    result.inputs.push_back(static_cast<std::int32_t>(draw(0) * config.vocab_size));
    const std::int32_t target = static_cast<std::int32_t>(draw(1) * config.vocab_size);
    result.targets.push_back(draw(2) < ignored ? -100 : target);
  }
  return result;
}

inline GptBatch rows_of(const GptBatch& whole, std::int64_t first, std::int64_t count) {
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin() + first * whole.tokens, all.begin() + (first + count) * whole.tokens);
  };
  return {count, whole.tokens, part(whole.inputs), part(whole.targets)};
}

inline std::int64_t valid_targets(const GptBatch& batch, std::int64_t ignore_index = -100) {
  return static_cast<std::int64_t>(batch.targets.size()) -
         std::count(batch.targets.begin(), batch.targets.end(), ignore_index);
}

struct TestModel {
  Context context;
  Gpt model;
  Arena arena;
  Tensor weights, gradients;
  alignas(loss::LossSums::alignment) unsigned char sums_storage[loss::LossSums::bytes];
  loss::LossSums sums;

  TestModel(const GptConfig& config, const LossSettings& loss_settings, std::int64_t batch, std::int64_t tokens,
            DType precision = DType::fp32, Gpt::Mode mode = Gpt::Mode::training, int threads = 2)
      : context(Context::cpu(threads)), model(config, precision, loss_settings), sums(context, sums_storage) {
    ArenaPlan plan;
    const Shape block{model.parameters().block_elements()};
    const auto weight_slot = plan.add("parameters", "weights", precision, block);
    const auto gradient_slot = plan.add("gradients", "gradients", DType::fp32, block);
    model.plan(context, plan, batch, tokens, mode);
    model.plan_generation(context, plan);
    arena = Arena(context, plan);
    weights = arena[weight_slot];
    gradients = arena[gradient_slot];
    model.bind(arena, weights, mode == Gpt::Mode::training ? gradients : Tensor{});
    set(test_weights(model.parameters(), precision));
  }

  void set(const NamedValues& values) {
    for (const Parameter& parameter : model.parameters().all()) {
      const Tensor to = ParameterList::view(weights, parameter);
      for (std::int64_t i = 0; i < to.elements(); ++i) {
        const float value = static_cast<float>(values.at(parameter.name)[i]);
        if (to.dtype == DType::bf16) {
          to.as<bf16>()[i] = from_float<bf16>(value);
        } else {
          to.as<float>()[i] = value;
        }
      }
    }
  }

  // One step over micro-batches of `micro` rows; `step` may carry seed, step, and a hook.
  loss::Report train_step(const GptBatch& whole, std::int64_t micro, StepInfo step = {}) {
    const float denominator = static_cast<float>(valid_targets(whole));
    step.denominator = ConstTensor(&denominator, DType::fp32, {1});
    sums.reset(context);
    for (std::int64_t first = 0; first < whole.batch; first += micro) {
      const GptBatch part = rows_of(whole, first, std::min(micro, whole.batch - first));
      step.first_micro_batch = first == 0;
      model.forward_backward(context, view(part, first), step, sums);
    }
    return sums.read(context);
  }

  loss::Report evaluate(const GptBatch& batch) {
    sums.reset(context);
    model.evaluate(context, view(batch, 0), sums);
    return sums.read(context);
  }

  static Batch view(const GptBatch& batch, std::uint64_t first_row) {
    const Shape shape{batch.batch, batch.tokens};
    return {ConstTensor(batch.inputs.data(), DType::int32, shape),
            ConstTensor(batch.targets.data(), DType::int32, shape), first_row};
  }

  std::vector<float> gradient_copy() const {
    const float* values = gradients.as<float>();
    return {values, values + gradients.elements()};
  }
  std::vector<float> weight_copy() const {
    const float* values = weights.as<float>();
    return {values, values + weights.elements()};
  }
};

// Largest |gradient - reference| over a parameter, and the reference's largest magnitude.
struct Difference {
  double largest = 0, scale = 0;
};
inline Difference gradient_difference(const TestModel& test, const Parameter& parameter, const NamedValues& expected) {
  const float* values = ParameterList::view(test.gradients, parameter).as<float>();
  const reference::Values& wanted = expected.at(parameter.name);
  Difference result;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(values[i] - wanted[i]);
    result.largest = std::isfinite(difference) ? std::max(result.largest, difference) : INFINITY;
    result.scale = std::max(result.scale, std::abs(wanted[i]));
  }
  return result;
}

inline double largest(const std::vector<float>& values) {
  double result = 0;
  for (const float value : values) result = std::max(result, std::abs(static_cast<double>(value)));
  return result;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace greyhound::test
