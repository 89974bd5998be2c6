#include <greyhound/train/commands.h>
#include <greyhound/train/compute_device.h>
#include <greyhound/train/console.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/stored_run.h>

#include <cstdio>

namespace greyhound {

void sample_command(const SampleOptions& options) {
  set_up_console();
  StoredRun run(options.run_dir);
  const Config& config = run.config();
  GenerationOptions generation;
  generation.sampling.temperature = options.temperature.value_or(config.sample.temperature);
  generation.sampling.top_k = options.top_k.value_or(config.sample.top_k);
  generation.tokens = options.tokens.value_or(config.sample.tokens);
  generation.seed = static_cast<std::uint64_t>(options.seed.value_or(config.run.seed));
  const std::string prompt = options.prompt.value_or(config.sample.prompt);
  encode_prompt(run.tokenizer(), prompt);  // complains before the weights are read

  const ComputeDevice device = choose_device(options.device.value_or(config.run.device));
  const Context& context = device.context;
  run.load_model(context, [&](Gpt& model, ArenaPlan& plan) { model.plan_generation(context, plan); });
  generate_text(context, run.model(), run.tokenizer(), prompt, generation, [](const std::string& piece) {
    std::fputs(piece.c_str(), stdout);
    require_output_written();
  });
  std::fputs("\n", stdout);
  require_output_written();
}

}  // namespace greyhound
