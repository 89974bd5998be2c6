#include <greyhound/core/comm/launch.h>
#include <greyhound/core/version.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/compute_device.h>
#include <greyhound/train/console.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/gpt2_import.h>
#include <greyhound/train/memory_report.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/training_loop.h>

namespace greyhound {

namespace {

// What `config` leaves to the data is filled in: the vocabulary.
RunData open_run_data(Config& config, const BatchPlan& batch, const Communicator& communicator) {
  // A run that is trained further keeps the meaning of its tokens.
  const std::optional<Tokenizer> tokenizer = initial_tokenizer(config);
  RunData data = open_data(config, batch, communicator.rank(), tokenizer ? &*tokenizer : nullptr);
  config.model.vocab_size = data.vocab_size;
  if (config.sample.every > 0) encode_prompt(data.tokenizer, config.sample.prompt);  // fails now rather than then
  return data;
}

void log_run(const Config& config, const BatchPlan& batch, const ComputeDevice& device, const RunData& data,
             const TrainingBuffers& buffers, const Communicator& communicator) {
  const GptConfig& model = buffers.model.config();
  spdlog::info("greyhound {}", GREYHOUND_VERSION);
  spdlog::info("device    {}, {}", device.description, name_of(config.run.precision));
  if (!device.why_not_gpu.empty()) spdlog::info("          no GPU: {}", device.why_not_gpu);
  spdlog::info("data      {}", data.description);
  spdlog::info("model     {}, {}, {} wide, block {}, vocabulary {} (stored as {}): {} parameters",
               counted(model.n_layer, "layer"), counted(model.n_head, "head"), model.n_embd, model.block_size,
               model.vocab_size, model.padded_vocab(), with_commas(buffers.model.parameters().count()));
  if (!config.model.init_from.empty()) spdlog::info("weights   from {}", config.model.init_from);
  spdlog::info("batch     {} tokens a step: {} rank{} x {} micro-batch{} x {} x {}", with_commas(batch.tokens()),
               communicator.size(), communicator.size() == 1 ? "" : "s", batch.accumulation,
               batch.accumulation == 1 ? "" : "es", counted(batch.micro_batch, "row"),
               counted(batch.block_size, "token"));
  for (const std::string& warning : data.warnings) spdlog::warn("{}", warning);
}

// Prints the table of all buffers; throws when they do not fit. Nothing is allocated before.
void report_memory(const Context& context, const Config& config, const BatchPlan& batch) {
  const bool on_cpu = context.device().is_cpu();
  const std::int64_t sharing = ranks_on_host(batch.ranks);
  const std::int64_t free = memory_for_plan(context.device()) / (on_cpu ? sharing : 1);  // a GPU serves one rank
  const ArenaPlan plan = memory_plan(context, config, batch.micro_batch, batch.ranks);
  std::string table = plan.table(free);
  table.pop_back();
  spdlog::info("memory on {}{}\n{}", to_string(context.device()),
               on_cpu && sharing > 1 ? fmt::format(", for each of {} ranks", sharing) : "", table);
  const auto needed = static_cast<std::int64_t>(plan.bytes());
  if (needed > free) {
    throw_runtime(out_of_memory_message(context, config, batch.micro_batch, needed, free, batch.ranks));
  }
  if (on_cpu) return;
  const std::int64_t host = host_batch_bytes(config, batch.micro_batch, batch.ranks);
  const std::int64_t host_free = available_memory(Device::cpu()) / sharing;
  if (host > host_free) {
    throw_runtime("out of memory on the host: the rows of a step take ", format_bytes(static_cast<double>(host)), ", ",
                  format_bytes(static_cast<double>(host_free)), " are free; train.batch_tokens shrinks them");
  }
}

void write_run_files(const RunDir& run_dir, const Config& config, const Tokenizer& tokenizer) {
  run_dir.create();
  write_atomically(run_dir.config(), to_yaml(config));
  tokenizer.save(run_dir.tokenizer());
}

}  // namespace

void train_command(const TrainOptions& options) {
  const StopRequest stop;  // before work that takes long: a signal meanwhile counts
  const std::unique_ptr<Communicator> communicator = make_host_communicator();
  set_up_console(communicator->rank());
  Config config = load_config(options.config, options.overrides, complete_model_section);
  const RunDir run_dir(config.run.dir);
  if (communicator->is_root()) run_dir.check(options.overwrite);

  const ComputeDevice device = choose_device(config.run.device);
  const BatchPlan batch =
      plan_batch(config.train.micro_batch, config.train.batch_tokens, config.model.block_size, communicator->size());
  RunData data = open_run_data(config, batch, *communicator);
  TrainingBuffers buffers(device.context, config, batch.micro_batch);
  log_run(config, batch, device, data, buffers, *communicator);
  report_memory(device.context, config, batch);
  buffers.allocate(device.context);
  if (stop_agreed(stop, device.context, *communicator)) {
    spdlog::info("stopped by {} before the first step; nothing was written",
                 stop.requested() ? stop.signal_name() : "another rank");
    return;
  }

  if (communicator->is_root()) write_run_files(run_dir, config, data.tokenizer);
  TrainingLoop(device.context, *communicator, config, batch, run_dir, buffers, data, stop).run();
}

}  // namespace greyhound
