#include <greyhound/core/comm/launch.h>
#include <greyhound/core/version.h>
#include <greyhound/train/agreement.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/compute_device.h>
#include <greyhound/train/console.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/gpt2_import.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/memory_report.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/resume.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/training_loop.h>

#include <filesystem>
#include <optional>

namespace greyhound {

namespace {

// A run that is trained further keeps the meaning of its tokens.
std::optional<Tokenizer> known_tokenizer(const Config& config, const RunDir& run_dir, bool resumed) {
  std::error_code ignored;  // ranks on other hosts need not have the folder
  if (resumed && std::filesystem::exists(run_dir.tokenizer(), ignored)) return Tokenizer::load(run_dir.tokenizer());
  return initial_tokenizer(config);
}

// What `config` leaves to the data is filled in: the vocabulary.
RunData open_run_data(Config& config, const BatchPlan& batch, const Communicator& communicator,
                      const std::optional<Tokenizer>& tokenizer) {
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
void report_memory(const Context& context, const Config& config, const BatchPlan& batch,
                   const ParameterList& parameters) {
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
  const std::int64_t rows = host_batch_bytes(config, batch.micro_batch, batch.ranks);
  const std::int64_t snapshot = checkpoint_snapshot_bytes(config, parameters);
  const std::int64_t host_free = available_memory(Device::cpu()) / sharing;
  if (rows + snapshot > host_free) {
    throw_runtime("out of memory on the host: the rows of a step take ", format_bytes(static_cast<double>(rows)),
                  ", the checkpoint snapshot ", format_bytes(static_cast<double>(snapshot)), ", ",
                  format_bytes(static_cast<double>(host_free)),
                  " are free; train.batch_tokens shrinks the first, checkpoint.background=false saves the second");
  }
}

void write_run_files(const RunDir& run_dir, const Config& config, const Tokenizer& tokenizer) {
  run_dir.make_folder();
  write_atomically(run_dir.config(), to_yaml(config));
  tokenizer.save(run_dir.tokenizer());
}

// What the root rank found in run.dir.
struct Found {
  std::shared_ptr<FolderLock> lock;      // when the folder is there
  std::optional<Checkpoint> checkpoint;  // that --resume goes on from
};

// Throws an Error unless this run may write there.
Found look_into(const RunDir& run_dir, const TrainOptions& options) {
  Found found;
  std::error_code ignored;
  if (std::filesystem::is_directory(run_dir.path(), ignored)) found.lock = std::make_shared<FolderLock>(run_dir.path());
  run_dir.check(options.resume || options.overwrite);
  if (!options.resume) return found;
  std::vector<std::string> warnings;
  found.checkpoint = CheckpointFolder(run_dir).newest(warnings);
  for (const std::string& warning : warnings) spdlog::warn("{}", warning);
  if (found.checkpoint) return found;
  require(!std::filesystem::exists(run_dir.weights(), ignored), "run.dir ", run_dir.path(),
          ": --resume: holds trained weights, but no checkpoint to go on from; model.init_from=", run_dir.path(),
          " starts from the weights, in another run.dir, and --overwrite replaces them");
  return found;
}

// Throws an Error unless the checkpoint is of this run.
void go_on_with(const Checkpoint& checkpoint, const CheckpointInfo& info, const Config& config, const RunDir& run_dir) {
  require_same_run(checkpoint, info, run_dir);
  const CheckpointFolder checkpoints(run_dir);
  checkpoints.publish_weights(checkpoint.info().step);  // a crash may have come between
  checkpoints.tidy(checkpoint.info().step, config.checkpoint.keep);
  run_dir.remove_unfinished_files();
  spdlog::info("resuming from {}", checkpoint.folder());
}

// The folder belongs to this process from here on.
std::shared_ptr<FolderLock> take_folder(const RunDir& run_dir, const Found& found) {
  if (found.lock) return found.lock;
  run_dir.make_folder();
  auto lock = std::make_shared<FolderLock>(run_dir.path());
  if (!run_dir.existing().empty())
    throw_runtime("run.dir ", run_dir.path(), ": another greyhound made a run meanwhile");
  return lock;
}

}  // namespace

void train_command(const TrainOptions& options) {
  const StopRequest stop;  // before work that takes long: a signal meanwhile counts
  std::unique_ptr<Communicator> communicator = make_host_communicator();
  set_up_console(communicator->rank(), communicator->size());
  // What one rank cannot do, none of them begins.
  const auto complete = [&](Config& config, const std::set<std::string>& given) {
    const RunDir run_dir(config.run.dir);
    const bool resumes = options.resume && !CheckpointFolder(run_dir).steps().empty();
    if (!resumes || config.model.init_from.empty()) return complete_model_section(config, given);
    complete_from_run(config, given, run_dir);
  };
  Config config = get_together(*communicator, [&] { return load_config(options.config, options.overrides, complete); });
  require_same_inputs(*communicator, config);
  const RunDir run_dir(config.run.dir);
  const Found found =
      get_together(*communicator, [&] { return communicator->is_root() ? look_into(run_dir, options) : Found(); });
  const bool resumed = broadcast(found.checkpoint ? 1 : 0, *communicator) != 0;

  const int gpu = agree_on_gpu(*communicator, config.run.device);  // one for each rank of a host
  const ComputeDevice device = get_together(*communicator, [&] { return choose_device(config.run.device, gpu); });
  require_same(*communicator, "run.device " + config.run.device,
               {{"the kind of device", device.context.device().is_cuda() ? "cuda" : "cpu"}});
  if (device.context.device().is_cuda()) {
    communicator = make_device_communicator(std::move(communicator), device.context);
  }
  const BatchPlan batch = get_together(*communicator, [&] {
    return plan_batch(config.train.micro_batch, config.train.batch_tokens, config.model.block_size,
                      communicator->size());
  });
  RunData data = get_together(*communicator, [&] {
    return open_run_data(config, batch, *communicator, known_tokenizer(config, run_dir, resumed));
  });
  const CheckpointInfo info = get_together(*communicator, [&] {  // of the root rank: no other compares or saves
    if (!communicator->is_root()) return CheckpointInfo();
    return describe_run(config, batch, data.tokenizer, data_files(config));
  });
  run_together(*communicator, [&] {
    if (found.checkpoint) go_on_with(*found.checkpoint, info, config, run_dir);
  });
  if (options.resume && !resumed) spdlog::info("no checkpoint in {}: starting the run", run_dir.path());
  const std::int64_t step = broadcast(found.checkpoint ? found.checkpoint->info().step : 0, *communicator);
  if (step >= config.train.max_steps) {
    spdlog::info("the run in {} is finished: {} of {}; a larger train.max_steps goes on with it", run_dir.path(),
                 counted(step, "step"), config.train.max_steps);
    return;
  }
  TrainingBuffers buffers = get_together(
      *communicator, [&] { return TrainingBuffers(device.context, config, batch.micro_batch, batch.ranks); });
  log_run(config, batch, device, data, buffers, *communicator);
  run_together(*communicator, [&] {
    report_memory(device.context, config, batch, buffers.model.parameters());
    buffers.allocate(device.context);
  });
  if (stop_agreed(stop, device.context, *communicator)) {
    spdlog::info("stopped by {} before the first step; nothing was written",
                 stop.requested() ? stop.signal_name() : "another rank");
    return;
  }

  const auto make_run_files = [&] { write_run_files(run_dir, config, data.tokenizer); };
  std::shared_ptr<FolderLock> lock;
  run_together(*communicator, [&] {
    if (!communicator->is_root()) return;
    lock = take_folder(run_dir, found);
    if (!resumed) {
      CheckpointFolder(run_dir).remove_all();
      run_dir.remove_files();
    }
    make_run_files();
  });
  TrainingLoop(device.context, *communicator, config, batch,
               {run_dir, lock, info, make_run_files, resumed, found.checkpoint}, buffers, data, stop)
      .run();
}

}  // namespace greyhound
