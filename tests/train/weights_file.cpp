#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/core/version.h>
#include <greyhound/train/build_model.h>
#include <greyhound/train/safetensors.h>
#include <greyhound/train/weights_file.h>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::string save(const ToyRun& run, const std::string& path, std::int64_t step = 12) {
  save_weights(path, run.context, run.buffers.model.parameters(), run.buffers.optimizer.weights(), step);
  return path;
}

}  // namespace

TEST_CASE("weights: named, without padded rows, with metadata") {
  const TemporaryFolder folder;
  const ToyRun run(toy());
  const SafetensorsFile file(save(run, folder / "model.safetensors"));
  CHECK(file["wte.weight"].shape == Shape{17, 12});  // stored as 24 rows in memory
  CHECK(file["wpe.weight"].shape == Shape{9, 12});
  CHECK(file["h.1.attn.c_attn.weight"].shape == Shape{36, 12});
  CHECK(file["ln_f.weight"].shape == Shape{12});
  CHECK(file.names().size() == run.buffers.model.parameters().all().size());
  CHECK(file.metadata().at("step") == "12");
  CHECK(file.metadata().at("greyhound_version") == GREYHOUND_VERSION);
}

TEST_CASE("weights: loading restores the bits, and rounds for bf16") {
  const TemporaryFolder folder;
  ToyRun run(toy());
  run.trainer->step();
  const std::string path = save(run, folder / "model.safetensors", 1);
  const ParameterList& parameters = run.buffers.model.parameters();

  std::vector<float> loaded(static_cast<std::size_t>(parameters.block_elements()), 5.0f);
  const Shape block = {parameters.block_elements()};
  CHECK(load_weights(path, run.context, parameters, tensor(loaded.data(), DType::fp32, block)) == 1);
  CHECK(loaded == run.weights());

  std::vector<bf16> rounded(loaded.size());
  load_weights(path, run.context, parameters, tensor(rounded.data(), DType::bf16, block));
  bool same = true;
  for (std::size_t i = 0; i < loaded.size(); ++i) same = same && rounded[i].bits == from_float<bf16>(loaded[i]).bits;
  CHECK(same);
}

TEST_CASE("weights: a tensor of whole numbers is an error that names file and tensor") {
  const TemporaryFolder folder;
  const ToyRun run(toy());
  const ParameterList& parameters = run.buffers.model.parameters();
  const SafetensorsFile good(save(run, folder / "good.safetensors"));
  std::vector<NamedTensor> tensors;
  const std::vector<std::int32_t> counts(12);
  for (const std::string& name : good.names()) {
    const bool changed = name == "ln_f.weight";
    tensors.push_back(
        {name, changed ? tensor(static_cast<const void*>(counts.data()), DType::int32, {12}) : good[name]});
  }
  const std::string path = folder / "bad.safetensors";
  write_safetensors(path, tensors);
  std::vector<float> block(static_cast<std::size_t>(parameters.block_elements()));
  const std::string message = error_of([&] {
    load_weights(path, run.context, parameters, tensor(block.data(), DType::fp32, {parameters.block_elements()}));
  });
  CHECK(message == "1: " + path + ": tensor ln_f.weight: expected dtype fp32, bf16 or fp16, found int32");
}

TEST_CASE("weights: a file of another model is an error with both values") {
  const TemporaryFolder folder;
  const ToyRun run(toy());
  const std::string path = save(run, folder / "model.safetensors");
  const auto load_into = [&](const Config& config) {
    return error_of([&] {
      const Gpt model = build_model(config);
      std::vector<float> block(static_cast<std::size_t>(model.parameters().block_elements()));
      load_weights(path, run.context, model.parameters(),
                   tensor(block.data(), DType::fp32, {model.parameters().block_elements()}));
    });
  };
  CHECK(load_into(toy()) == "no error");
  const std::string vocabulary = load_into(toy({"model.vocab_size=16"}));
  CHECK(contains(vocabulary, "1: " + path));
  CHECK(contains(vocabulary, "wte.weight: expected shape [16, 12], found [17, 12]"));
  CHECK(contains(load_into(toy({"model.n_layer=3"})), "h.2."));
  CHECK(contains(load_into(toy({"model.n_layer=1"})), "which this model does not have"));
  CHECK(contains(load_into(toy({"model.tie_embeddings=false"})), "lm_head.weight"));
}
