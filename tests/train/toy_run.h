// A small training run in memory, on the backend under test, for tests of what surrounds the step.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/core/memory.h>
#include <greyhound/train/config.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/trainer.h>
#include <greyhound/train/training_buffers.h>
#include <tests/backend.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace greyhound::testing {

// Odd sizes on purpose. Overrides are applied to it.
inline constexpr const char* toy_config = R"(
run: {dir: unused, seed: 3, device: cpu}
model: {n_layer: 2, n_head: 3, n_embd: 12, block_size: 9, vocab_size: 17, vocab_multiple: 8, dropout: 0.1}
data: {train: synthetic, val: synthetic}
optimizer: {lr: 1.0e-2}
train: {micro_batch: 2, batch_tokens: 54, max_steps: 20}
eval: {every: 5, batches: 3}
sample: {every: 5, tokens: 5, prompt: "1 2"}
)";

inline Config toy(const std::vector<std::string>& overrides = {}) {
  return parse_config(toy_config, "toy.yaml", overrides);
}

// The contents of a tensor of a context's device.
inline std::vector<std::byte> bytes_of(const Context& context, const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  copy_bytes(context, bytes.data(), Device::cpu(), tensor.data, tensor.device, bytes.size());
  context.synchronize();
  return bytes;
}
inline std::vector<float> floats_of(const Context& context, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  copy_bytes(context, values.data(), Device::cpu(), tensor.as<float>(), tensor.device, tensor.bytes());
  context.synchronize();
  return values;
}

struct ToyRun {
  Config config;
  Context context;
  std::unique_ptr<Communicator> alone = make_single_rank();
  Communicator* communicator;
  BatchPlan batch;
  RunData data;
  TrainingBuffers buffers;
  std::unique_ptr<Trainer> trainer;

  // As one rank, or as one of `ranks`, which outlives the run.
  explicit ToyRun(const Config& given, int threads = 0, Communicator* ranks = nullptr)
      : config(given),
        context(test::test_context(threads)),
        communicator(ranks == nullptr ? alone.get() : ranks),
        batch(plan_batch(config.train.micro_batch, config.train.batch_tokens, config.model.block_size,
                         communicator->size())),
        data(open_data(config, batch, communicator->rank())),
        buffers(context, with_vocabulary(), batch.micro_batch, batch.ranks) {
    buffers.allocate(context);
    trainer = std::make_unique<Trainer>(context, *communicator, config, batch, buffers, *data.train);
    trainer->initialize();
  }

  std::vector<float> weights() const { return floats_of(context, buffers.optimizer.weights()); }
  std::vector<float> gradients() const { return floats_of(context, buffers.optimizer.gradients()); }
  Tensor gradient(const std::string& name) {
    return ParameterList::view(buffers.optimizer.gradients(), buffers.model.parameters()[name]);
  }

 private:
  const Config& with_vocabulary() {
    config.model.vocab_size = data.vocab_size;
    return config;
  }
};

// Keeps a copy of all state, or puts it back.
class StateCopy final : public StateVisitor {
 public:
  explicit StateCopy(const Context& context) : context_(context) {}
  void restore() { restoring_ = true; }
  bool operator==(const StateCopy& other) const { return values_ == other.values_; }
  const std::map<std::string, std::vector<std::byte>>& values() const { return values_; }

  void tensor(const std::string& name, const Tensor& value) override {
    if (restoring_) {
      copy_bytes(context_, value.data, value.device, values_.at(name).data(), Device::cpu(), value.bytes());
      context_.synchronize();
    } else {
      values_[name] = bytes_of(context_, value);
    }
  }
  void integer(const std::string& name, std::int64_t& value) override { visit(name, &value, sizeof value); }
  void real(const std::string& name, double& value) override { visit(name, &value, sizeof value); }
  void text(const std::string& name, std::string& value) override {
    if (restoring_) {
      value.assign(reinterpret_cast<const char*>(values_.at(name).data()), values_.at(name).size());
    } else {
      visit(name, value.data(), value.size());
    }
  }

 private:
  void visit(const std::string& name, void* data, std::size_t bytes) {
    if (restoring_) {
      std::memcpy(data, values_.at(name).data(), bytes);
    } else {
      const auto* first = static_cast<const std::byte*>(data);
      values_[name] = {first, first + bytes};
    }
  }

  Context context_;
  bool restoring_ = false;
  std::map<std::string, std::vector<std::byte>> values_;
};

inline StateCopy state_of(ToyRun& run) {
  StateCopy copy(run.context);
  run.trainer->visit_state(copy);
  return copy;
}

}  // namespace greyhound::testing
