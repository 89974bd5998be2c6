// Ten AdamW steps of a tiny GPT-2 against PyTorch's numbers in data/gpt2_tiny.txt, which scripts/make_gpt2_vector.py
// made. Sizes, weights and tokens repeat that script's.
#include <greyhound/kernels/optimizer.h>
#include <tests/models/test_model.h>

#include <fstream>
#include <sstream>

using namespace greyhound;
using namespace greyhound::test;

namespace {

constexpr std::int64_t batch_size = 3, tokens = 9;
constexpr float z_loss = 1e-4f;

GptConfig tiny_config() {
  GptConfig config;
  config.n_layer = 2;
  config.n_head = 3;
  config.n_embd = 12;
  config.block_size = 11;
  config.vocab_size = 29;
  config.vocab_multiple = 8;  // PyTorch's has no padding: it must not matter
  return config;
}

std::uint32_t mix(std::uint32_t stream, std::uint32_t index) {
  std::uint32_t x = stream * 0x9E3779B1u + index;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

// The script numbers the parameters in this order, from 1.
std::vector<std::string> script_order() {
  std::vector<std::string> names = {"wte.weight", "wpe.weight"};
  for (const std::string block : {"h.0.", "h.1."}) {
    for (const char* part : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      names.push_back(block + part + ".weight");
      names.push_back(block + part + ".bias");
    }
  }
  names.push_back("ln_f.weight");
  names.push_back("ln_f.bias");
  return names;
}

NamedValues script_weights(const ParameterList& list) {
  NamedValues weights;
  std::uint32_t stream = 0;
  for (const std::string& name : script_order()) {
    const Parameter& parameter = list[name];
    reference::Values& values = weights[name];
    values.assign(parameter.shape.elements(), 0.0);
    ++stream;
    for (std::int64_t i = 0; i < parameter.logical_rows * parameter.shape.columns(); ++i) {
      values[i] = (mix(stream, i) >> 20) / 4096.0 - 0.5 + (parameter.init == Init::ones ? 1 : 0);
    }
  }
  return weights;
}

GptBatch script_batch(std::uint32_t step) {
  GptBatch batch{batch_size, tokens, {}, {}};
  for (std::uint32_t i = 0; i < batch_size * tokens; ++i) {
    batch.inputs.push_back(static_cast<std::int32_t>(mix(1000 + step, i) % 29));
    const std::int32_t target = static_cast<std::int32_t>(mix(2000 + step, i) % 29);
    batch.targets.push_back(mix(3000 + step, i) % 5 == 0 ? -100 : target);
  }
  return batch;
}

struct Line {
  std::uint32_t step;
  double loss, norm;
};

std::vector<Line> stored_vector() {
  std::ifstream file(std::string(GREYHOUND_SOURCE_DIR) + "/tests/models/data/gpt2_tiny.txt");
  std::vector<Line> lines;
  for (std::string text; std::getline(file, text);) {
    Line line{};
    if (text[0] != '#' && (std::istringstream(text) >> line.step >> line.loss >> line.norm)) lines.push_back(line);
  }
  return lines;
}

// The optimiser's state beside a model in fp32.
struct Optimizer {
  ArenaPlan::Slot slots[5];
  Arena arena;
  std::vector<DecayRange> ranges;

  explicit Optimizer(const TestModel& model) : ranges(model.model.parameters().decay_ranges(0.1f)) {
    ArenaPlan plan;
    const std::size_t bytes = gradient_norm_workspace_bytes(model.context, model.weights.elements());
    slots[0] = plan.add("optimiser", "m", DType::fp32, model.weights.shape);
    slots[1] = plan.add("optimiser", "v", DType::fp32, model.weights.shape);
    slots[2] = plan.add("optimiser", "norm", DType::fp32, {1});
    slots[3] = plan.add("optimiser", "steps_taken", DType::int64, {1});
    slots[4] = plan.add("optimiser", "workspace", DType::uint8, {static_cast<std::int64_t>(bytes)});
    arena = Arena(model.context, plan);
  }

  void step(const TestModel& model) {
    Workspace workspace(arena[slots[4]]);
    gradient_norm(model.context, {model.gradients, arena[slots[2]]}, workspace);
    AdamW args;
    args.weights = model.weights;
    args.grads = model.gradients;
    args.m = arena[slots[0]];
    args.v = arena[slots[1]];
    args.norm = arena[slots[2]];
    args.steps_taken = arena[slots[3]];
    args.ranges = ranges.data();
    args.range_count = static_cast<std::int64_t>(ranges.size());
    args.lr = 1e-2f;
    args.grad_clip = 1;
    adamw(model.context, args);
  }

  float norm(const TestModel& model) const { return download<float>(model.context, arena[slots[2]])[0]; }
  std::int64_t steps_taken(const TestModel& model) const {
    return download<std::int64_t>(model.context, arena[slots[3]])[0];
  }
};

}  // namespace

TEST_CASE_ON_EACH_BACKEND("gpt: losses of ten AdamW steps are PyTorch's within 1e-5") {
  const std::vector<Line> lines = stored_vector();
  REQUIRE(lines.size() == 10);
  for (const std::int64_t micro_batch : {3, 1}) {
    CAPTURE(micro_batch);
    TestModel model(tiny_config(), {z_loss}, micro_batch, tokens);
    model.set(script_weights(model.model.parameters()));
    Optimizer optimizer(model);
    for (const Line& line : lines) {
      CAPTURE(line.step);
      const loss::Report report = model.train_step(script_batch(line.step), micro_batch);
      const double loss = report.mean_loss(z_loss);
      CHECK(std::abs(loss - line.loss) <= 1e-5 * line.loss);
      optimizer.step(model);
      CHECK(std::abs(optimizer.norm(model) - line.norm) <= 1e-4 * line.norm);
    }
    CHECK(optimizer.steps_taken(model) == 10);
  }
}
