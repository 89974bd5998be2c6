#include <greyhound/core/comm/communicator.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/compute_device.h>
#include <greyhound/train/console.h>
#include <greyhound/train/evaluate.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/stored_run.h>

#include <cmath>

namespace greyhound {

void eval_command(const EvalOptions& options) {
  set_up_console();
  StoredRun run(options.run_dir);
  Config config = run.config();
  config.eval.batches = options.batches.value_or(config.eval.batches);
  const ComputeDevice device = choose_device(options.device.value_or(config.run.device));
  const Context& context = device.context;
  const std::unique_ptr<Communicator> communicator = make_single_rank();

  const BatchPlan batch = plan_batch(config.train.micro_batch, config.train.batch_tokens, config.model.block_size, 1);
  if (options.data) config.eval.batches = options.batches.value_or(0);
  RunData data = options.data ? open_evaluation(config, batch, *options.data, run.tokenizer())
                              : open_data(config, batch, 0, &run.tokenizer());
  require(data.validation != nullptr, options.run_dir, ": data.val and data.val_fraction hold nothing out to evaluate");
  for (const std::string& warning : data.warnings) spdlog::warn("{}", warning);

  BatchBuffers buffers;
  run.load_model(context, [&](Gpt& model, ArenaPlan& plan) {
    model.plan(context, plan, batch.micro_batch, batch.block_size, Gpt::Mode::evaluation);
    buffers.plan(context, plan, batch.micro_batch, batch.block_size);
  });
  buffers.bind(context, run.arena());
  const Evaluation result = evaluate(context, *communicator, run.model(), *data.validation, buffers);
  spdlog::info("{}: step {}, {} loss {:.6f}, perplexity {:.3f}, {} targets", options.run_dir, run.step(),
               options.data ? "on " + *options.data + ":" : "validation", result.loss, std::exp(result.loss),
               with_commas(result.targets));
  require_output_written();
}

}  // namespace greyhound
