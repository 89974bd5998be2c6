// A small model with its arena and weights, for the tests of models/.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/core/arena.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>
#include <greyhound/models/gpt.h>
#include <tests/backend.h>
#include <tests/differences.h>
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

// What `tensor` holds, read from its device.
template <class T>
std::vector<T> download(const Context& context, const ConstTensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
  copy_bytes(context, values.data(), Device::cpu(), tensor.as<T>(), tensor.device, values.size() * sizeof(T));
  context.synchronize();
  return values;
}
template <class T>
void upload(const Context& context, const Tensor& to, const std::vector<T>& values) {
  require(static_cast<std::int64_t>(values.size()) == to.elements(), "upload: ", values.size(), " values");
  copy_bytes(context, to.as<T>(), to.device, values.data(), Device::cpu(), values.size() * sizeof(T));
  context.synchronize();
}

// Tolerances are for the CPU's fp32. A GPU's exp and division are within 2 ulp instead of 1, and its sums have other
// orders; TF32 would be another hundred times off.
inline double on_backend(double tolerance) { return BackendScope::device() != nullptr ? 4 * tolerance : tolerance; }

// On the backend of the test (tests/backend.h).
struct TestModel {
  struct Slots {
    ArenaPlan::Slot weights, gradients, tokens, targets, denominator, sums;
  };

  Context context;
  Gpt model;
  Slots slots;
  Arena arena;
  Tensor weights, gradients, denominator;
  loss::LossSums sums;

  TestModel(const GptConfig& config, const LossSettings& loss_settings, std::int64_t batch, std::int64_t tokens,
            DType precision = DType::fp32, Gpt::Mode mode = Gpt::Mode::training, int threads = 2,
            Recompute recompute = Recompute::none)
      : context(test_context(threads)),
        model(config, precision, loss_settings, recompute),
        arena(make_arena(batch, tokens, mode)),
        weights(arena[slots.weights]),
        gradients(arena[slots.gradients]),
        denominator(arena[slots.denominator]),
        sums(context, arena[slots.sums].data) {
    model.bind(arena, weights, mode == Gpt::Mode::training ? gradients : Tensor{});
    set(test_weights(model.parameters(), precision));
  }

  Arena make_arena(std::int64_t batch, std::int64_t tokens, Gpt::Mode mode) {
    ArenaPlan plan;
    const Shape block{model.parameters().block_elements()};
    slots.weights = plan.add("parameters", "weights", model.precision(), block);
    slots.gradients = plan.add("gradients", "gradients", DType::fp32, block);
    // Room for batches that are larger than planned, and refused.
    const Shape room{2 * batch * tokens + 64};
    slots.tokens = plan.add("batch", "tokens", DType::int32, room);
    slots.targets = plan.add("batch", "targets", DType::int32, room);
    slots.denominator = plan.add("batch", "denominator", DType::fp32, {1});
    slots.sums = plan.add("batch", "sums", DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)});
    model.plan(context, plan, batch, tokens, mode);
    model.plan_generation(context, plan);
    return Arena(context, plan);
  }

  void set(const NamedValues& values) {
    std::vector<float> block(static_cast<std::size_t>(weights.elements()));
    for (const Parameter& parameter : model.parameters().all()) {
      const reference::Values& from = values.at(parameter.name);
      std::transform(from.begin(), from.end(), block.begin() + parameter.offset,
                     [](double value) { return static_cast<float>(value); });
    }
    if (weights.dtype == DType::bf16) {
      std::vector<bf16> narrow(block.size());
      std::transform(block.begin(), block.end(), narrow.begin(), from_float<bf16>);
      upload(context, weights, narrow);
    } else {
      upload(context, weights, block);
    }
  }

  // One step over micro-batches of `micro` rows; `step` may carry seed, step, and a hook.
  loss::Report train_step(const GptBatch& whole, std::int64_t micro, StepInfo step = {}) {
    upload(context, denominator, std::vector<float>{static_cast<float>(valid_targets(whole))});
    step.denominator = denominator;
    sums.reset(context);
    for (std::int64_t first = 0; first < whole.batch; first += micro) {
      const GptBatch part = rows_of(whole, first, std::min(micro, whole.batch - first));
      step.first_micro_batch = first == 0;
      model.forward_backward(context, placed(part, first), step, sums);
    }
    return sums.read(context);
  }

  loss::Report evaluate(const GptBatch& batch) {
    sums.reset(context);
    model.evaluate(context, placed(batch, 0), sums);
    return sums.read(context);
  }

  std::vector<float> decode(std::int32_t token, std::int64_t position) {
    return download<float>(context, model.decode(context, token, position));
  }

  // A copy on the device, in the place of the one before.
  Batch placed(const GptBatch& batch, std::uint64_t first_row) {
    const Shape shape{batch.batch, batch.tokens};
    const auto place = [&](ArenaPlan::Slot slot, const std::vector<std::int32_t>& values) {
      const Tensor to = arena[slot].slice(0, shape);
      upload(context, to, values);
      return to;
    };
    return {place(slots.tokens, batch.inputs), place(slots.targets, batch.targets), first_row};
  }

  std::vector<float> gradient_copy() const { return download<float>(context, gradients); }
  std::vector<float> gradient_of(const Parameter& parameter) const {
    return download<float>(context, ParameterList::view(gradients, parameter));
  }
  std::vector<float> weight_copy() const { return download<float>(context, weights); }  // of a model in fp32
};

// Largest |gradient - reference| over a parameter, and the reference's largest magnitude.
struct Difference {
  double largest = 0, scale = 0;
};
inline Difference gradient_difference(const TestModel& test, const Parameter& parameter, const NamedValues& expected) {
  const std::vector<float> values = test.gradient_of(parameter);
  const reference::Values& wanted = expected.at(parameter.name);
  return {largest_difference(values, wanted), largest_magnitude(wanted)};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace greyhound::test
