#include <doctest/doctest.h>
#include <greyhound/core/arena.h>
#include <greyhound/models/gpt.h>
#include <tests/backend.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

using namespace greyhound;

namespace {

GptConfig small_config() {
  GptConfig config;
  config.n_layer = 2;
  config.n_head = 2;
  config.n_embd = 10;
  config.block_size = 7;
  config.vocab_size = 13;
  config.vocab_multiple = 8;
  return config;
}

ParameterList parameters_of(const GptConfig& config) { return Gpt(config, DType::fp32, {}).parameters(); }

struct Block {
  std::vector<float> values;
  Tensor tensor() { return Tensor(values.data(), DType::fp32, {static_cast<std::int64_t>(values.size())}); }
};

Block initialized(const ParameterList& list, std::uint64_t seed, int threads = 1) {
  Block block{std::vector<float>(list.block_elements(), NAN)};
  list.initialize(Context::cpu(threads), block.tensor(), seed);
  return block;
}

double standard_deviation(const float* values, std::int64_t count) {
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i], squares += static_cast<double>(values[i]) * values[i];
  return std::sqrt(squares / count - (sum / count) * (sum / count));
}

std::vector<std::string> names(const ParameterList& list) {
  std::vector<std::string> result;
  for (const Parameter& parameter : list.all()) result.push_back(parameter.name);
  return result;
}

}  // namespace

TEST_CASE("parameters: GPT-2 small has 124,439,808, whatever the padding of the vocabulary") {
  GptConfig config;
  CHECK(parameters_of(config).count() == 124439808);
  CHECK(parameters_of(config)["wte.weight"].shape == Shape{50304, 768});
  config.vocab_multiple = 1;
  CHECK(parameters_of(config).count() == 124439808);
  config.tie_embeddings = false;
  CHECK(parameters_of(config).count() == 124439808 + 50257 * 768);
}

TEST_CASE("parameters: names and shapes are Hugging Face's, in the order in which backward completes them") {
  GptConfig config = small_config();
  config.n_layer = 1;
  config.tie_embeddings = false;
  const ParameterList list = parameters_of(config);
  CHECK(names(list) == std::vector<std::string>{
                           "lm_head.weight", "ln_f.weight", "ln_f.bias", "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias",
                           "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.ln_2.weight", "h.0.ln_2.bias",
                           "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.0.attn.c_attn.weight",
                           "h.0.attn.c_attn.bias", "h.0.ln_1.weight", "h.0.ln_1.bias", "wpe.weight", "wte.weight"});
  CHECK(list["h.0.attn.c_attn.weight"].shape == Shape{30, 10});
  CHECK(list["h.0.mlp.c_fc.weight"].shape == Shape{40, 10});
  CHECK(list["h.0.mlp.c_proj.weight"].shape == Shape{10, 40});
  CHECK(list["lm_head.weight"].shape == Shape{16, 10});
  CHECK(list["lm_head.weight"].logical_rows == 13);
  CHECK(list["wpe.weight"].shape == Shape{7, 10});
  CHECK_THROWS_WITH_AS(list["h.1.ln_1.weight"], "parameters: the model has no h.1.ln_1.weight", Error);

  config.bias = false;
  config.tie_embeddings = true;
  for (const std::string& name : names(parameters_of(config))) {
    CHECK(name.find("bias") == std::string::npos);
    CHECK(name != "lm_head.weight");
  }
}

TEST_CASE("parameters: the block is contiguous, aligned and without overlap") {
  const ParameterList list = parameters_of(small_config());
  std::int64_t end = 0;
  for (const Parameter& parameter : list.all()) {
    CAPTURE(parameter.name);
    CHECK(parameter.offset % 64 == 0);
    CHECK(parameter.offset >= end);
    CHECK(parameter.offset - end < 64);
    end = parameter.offset + parameter.shape.elements();
  }
  CHECK(list.block_elements() >= end);
  CHECK(list.block_elements() - end < 64);
}

TEST_CASE("parameters: decay applies to matrices only, and its ranges cover the block in order") {
  const ParameterList list = parameters_of(small_config());
  const std::vector<DecayRange> ranges = list.decay_ranges(0.1f);
  std::int64_t end = 0;
  for (const DecayRange& range : ranges) {
    CHECK(range.begin == end);
    CHECK(range.end > range.begin);
    end = range.end;
  }
  CHECK(end == list.block_elements());
  for (const Parameter& parameter : list.all()) {
    CAPTURE(parameter.name);
    CHECK(parameter.decay == (parameter.shape.rank() == 2));
    for (const DecayRange& range : ranges) {
      if (parameter.offset < range.begin || parameter.offset >= range.end) continue;
      CHECK(range.weight_decay == (parameter.decay ? 0.1f : 0.0f));
      CHECK(parameter.offset + parameter.shape.elements() <= range.end);
    }
  }
}

TEST_CASE("parameters: GPT-2's initialisation") {
  GptConfig config = small_config();
  config.n_embd = 96;
  const ParameterList list = parameters_of(config);
  Block block = initialized(list, 1);
  for (const Parameter& parameter : list.all()) {
    CAPTURE(parameter.name);
    const float* values = ParameterList::view(block.tensor(), parameter).as<float>();
    const std::int64_t logical = parameter.logical_rows * parameter.shape.columns();
    const bool residual = parameter.name.find("c_proj.weight") != std::string::npos;
    if (parameter.shape.rank() == 2) {
      // The standard deviation of n draws is within 4 / sqrt(2 n) of its own, about 10 % for the smallest matrix here.
      CHECK(standard_deviation(values, logical) ==
            doctest::Approx(residual ? 0.02 / std::sqrt(4.0) : 0.02).epsilon(4 / std::sqrt(2.0 * logical)));
    } else {
      const float expected = parameter.name.find("bias") == std::string::npos ? 1 : 0;
      for (std::int64_t i = 0; i < logical; ++i) CHECK(values[i] == expected);
    }
    for (std::int64_t i = logical; i < parameter.shape.elements(); ++i) CHECK(values[i] == 0);  // padded rows
  }
}

TEST_CASE("parameters: gaps of the block are zero after initialisation") {
  const ParameterList list = parameters_of(small_config());
  Block block = initialized(list, 1);
  std::int64_t at = 0;
  for (const Parameter& parameter : list.all()) {
    for (; at < parameter.offset; ++at) CHECK(block.values[at] == 0);
    at += parameter.shape.elements();
  }
}

TEST_CASE("parameters: initial values are a function of seed, name and element alone") {
  const ParameterList list = parameters_of(small_config());
  const Block block = initialized(list, 5);
  CHECK(std::memcmp(block.values.data(), initialized(list, 5, 4).values.data(), block.values.size() * 4) == 0);
  CHECK(std::memcmp(block.values.data(), initialized(list, 6).values.data(), block.values.size() * 4) != 0);

  // Another number of layers, another padding, an untied head: what both models have is the same.
  GptConfig config = small_config();
  config.vocab_multiple = 1;
  config.tie_embeddings = false;
  const ParameterList other_list = parameters_of(config);
  Block first = block, other = initialized(other_list, 5);
  for (const char* name : {"wte.weight", "wpe.weight", "h.1.attn.c_attn.weight", "h.0.mlp.c_proj.weight"}) {
    CAPTURE(name);
    const float* a = ParameterList::view(first.tensor(), list[name]).as<float>();
    const float* b = ParameterList::view(other.tensor(), other_list[name]).as<float>();
    CHECK(std::memcmp(a, b, other_list[name].shape.elements() * sizeof(float)) == 0);
  }
  // Each parameter has a stream of its own.
  std::set<float> starts;
  for (const char* name : {"wte.weight", "wpe.weight", "lm_head.weight", "h.0.attn.c_attn.weight"}) {
    starts.insert(*ParameterList::view(other.tensor(), other_list[name]).as<float>());
  }
  CHECK(starts.size() == 4);
}

TEST_CASE_ON_EACH_BACKEND("parameters: initial weights are the same on every device") {
  const ParameterList list = parameters_of(small_config());
  const Context context = test::test_context();
  ArenaPlan plan;
  const ArenaPlan::Slot slot = plan.add("parameters", "weights", DType::fp32, {list.block_elements()});
  const Arena arena(context, plan);
  fill_bytes(context, arena[slot].data, 0xff, arena[slot].bytes());
  list.initialize(context, arena[slot], 5);
  std::vector<float> values(list.block_elements());
  copy_bytes(context, values.data(), Device::cpu(), arena[slot].data, arena[slot].device, arena[slot].bytes());
  context.synchronize();
  CHECK(std::memcmp(values.data(), initialized(list, 5).values.data(), values.size() * sizeof(float)) == 0);
}

TEST_CASE("parameters: a configuration that does not fit is refused with its numbers") {
  struct Case {
    const char* message;
    void (*change)(GptConfig&);
  };
  const Case cases[] = {
      {"model: n_embd 100 is not a multiple of n_head 12", [](GptConfig& c) { c.n_embd = 100; }},
      {"model: n_layer is 0, expected at least 1", [](GptConfig& c) { c.n_layer = 0; }},
      {"model: n_head is -1, expected at least 1", [](GptConfig& c) { c.n_head = -1; }},
      {"model: block_size is 0, expected at least 1", [](GptConfig& c) { c.block_size = 0; }},
      {"model: vocab_size is 0, expected at least 1", [](GptConfig& c) { c.vocab_size = 0; }},
      {"model: vocab_multiple is 0, expected at least 1", [](GptConfig& c) { c.vocab_multiple = 0; }},
      {"model: dropout is 1, expected a number in [0, 1)", [](GptConfig& c) { c.dropout = 1; }},
      {"model: dropout is -0.5, expected a number in [0, 1)", [](GptConfig& c) { c.dropout = -0.5f; }},
  };
  for (const Case& test : cases) {
    GptConfig config;
    test.change(config);
    CHECK_THROWS_WITH_AS(config.validate(), test.message, Error);
    CHECK_THROWS_WITH_AS(Gpt(config, DType::fp32, {}), test.message, Error);
  }
  CHECK_THROWS_WITH_AS(Gpt({}, DType::fp16, {}), "model: precision is fp16, expected fp32 or bf16", Error);
  LossSettings smoothing;
  smoothing.label_smoothing = 1;
  CHECK_THROWS_AS(Gpt({}, DType::fp32, smoothing), Error);
}
