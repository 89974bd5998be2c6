#include "step.h"

#include "report.h"
#include "step_report.h"

#include <greyhound/core/arena.h>
#include <greyhound/core/device_info.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/stream.h>
#include <greyhound/train/gpu_peak.h>
#include <greyhound/train/memory_report.h>
#include <greyhound/train/trainer.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>

namespace greyhound::bench {

namespace {

struct StepModel {
  const char* name;
  const char* sizes;  // of the section `model`
  std::int64_t micro_batch, batch_tokens;
};

// GPT-2's family with the batch of llm.c's reproduction, a toy for the CPU, and the small models of
// configs/shakespeare_char*.yaml.
constexpr StepModel models[] = {
    {"toy", "n_layer: 2, n_head: 4, n_embd: 128, block_size: 64, vocab_size: 256", 12, 768},
    {"char4", "n_layer: 4, n_head: 4, n_embd: 128, block_size: 64, vocab_size: 65, bias: false", 12, 768},
    {"char6", "n_layer: 6, n_head: 6, n_embd: 384, block_size: 256, vocab_size: 65, bias: false, dropout: 0.2", 64,
     16384},
    {"124m", "n_layer: 12, n_head: 12, n_embd: 768, block_size: 1024, vocab_size: 50257", 64, 524288},
    {"350m", "n_layer: 24, n_head: 16, n_embd: 1024, block_size: 1024, vocab_size: 50257", 32, 524288},
    {"774m", "n_layer: 36, n_head: 20, n_embd: 1280, block_size: 1024, vocab_size: 50257", 16, 524288},
    {"1558m", "n_layer: 48, n_head: 25, n_embd: 1600, block_size: 1024, vocab_size: 50257", 8, 524288},
};

const StepModel& model_of(const std::string& name) {
  for (const StepModel& model : models) {
    if (name == model.name) return model;
  }
  throw_usage("--model ", name, ": expected one of ", step_models());
}

Config config_of(const StepOptions& options, bool cuda) {
  const StepModel& model = model_of(options.model);
  // The largest run that the schedule has to know of.
  const std::string text =
      concat("run: {device: ", cuda ? "cuda" : "cpu", ", precision: ", cuda ? "bf16" : "fp32",
             ", cuda_graphs: ", options.graphs ? "true" : "false", "}\nmodel: {", model.sizes,
             "}\ndata: {train: synthetic, val: synthetic}\n",
             "optimizer: {lr: 6.0e-4, beta2: 0.95, weight_decay: 0.1, grad_clip: 1.0}\n",
             "train: {micro_batch: ", model.micro_batch, ", max_steps: 1000000}\n", "sample: {every: 0}\n");
  std::vector<std::string> overrides;
  if (options.micro_batch > 0) overrides.push_back(concat("train.micro_batch=", options.micro_batch));
  if (options.block > 0) overrides.push_back(concat("model.block_size=", options.block));
  if (!options.precision.empty()) overrides.push_back("run.precision=" + options.precision);
  if (!options.recompute.empty()) overrides.push_back("train.recompute=" + options.recompute);
  Config config = parse_config(text, "--model " + options.model, overrides);
  const std::int64_t micro_tokens = config.train.micro_batch * config.model.block_size;
  config.train.batch_tokens =
      micro_tokens *
      (options.accumulation > 0 ? options.accumulation : std::max<std::int64_t>(1, model.batch_tokens / micro_tokens));
  return config;
}

// A training run on made-up tokens, as `greyhound train` would make it.
struct Run {
  Run(const Context& given, const Config& given_config)
      : context(given),
        config(given_config),
        batch(plan_batch(config.train.micro_batch, config.train.batch_tokens, config.model.block_size, 1)),
        data(open_data(config, batch, 0)),
        buffers(context, config, batch.micro_batch) {
    const std::int64_t free = memory_for_plan(context.device());
    std::printf("%s", buffers.plan().table(free).c_str());
    const auto needed = static_cast<std::int64_t>(buffers.plan().bytes());
    if (needed > free) throw_runtime(out_of_memory_message(context, config, batch.micro_batch, needed, free));
    buffers.allocate(context);
    trainer.emplace(context, *communicator, config, batch, buffers, *data.train);
    trainer->initialize();  // a GPU multiplies zeros faster than what a model is made of
  }

  // Milliseconds of each of `steps` steps. As the training loop does, each is enqueued before the one before it is
  // waited for. `begin_step` is called before each.
  std::vector<double> time(
      int steps, const std::function<void()>& begin_step = [] {}) {
    std::vector<double> times;
    const auto finish = [&] { times.push_back(1e3 * trainer->finish_step().seconds); };
    for (int step = 0; step < steps; ++step) {
      begin_step();
      trainer->start_step();
      while (trainer->must_finish()) finish();
    }
    while (trainer->pending() > 0) finish();
    return times;
  }

  Context context;
  Config config;
  BatchPlan batch;
  RunData data;
  TrainingBuffers buffers;
  std::unique_ptr<Communicator> communicator = make_single_rank();
  std::optional<Trainer> trainer;
};

// Keeps a GPU at work while the host enqueues a short step behind it: otherwise the parts of a small model would take
// the time in which the host starts them.
class Delay {
 public:
  // Of `milliseconds`, about, on a device that copies so many bytes a second.
  Delay(const Context& context, double milliseconds, double bytes_per_second)
      : context_(context),
        count_(static_cast<int>(std::ceil(1e-3 * milliseconds * bytes_per_second / static_cast<double>(bytes)))) {
    ArenaPlan plan;
    const auto slot = plan.add("delay", "scratch", DType::uint8, {bytes});
    arena_ = Arena(context, plan);
    scratch_ = arena_[slot].data;
  }
  void enqueue() const {
    for (int i = 0; i < count_; ++i) fill_bytes(context_, scratch_, 0, static_cast<std::size_t>(bytes));
  }

 private:
  static constexpr std::int64_t bytes = std::int64_t{256} << 20;
  Context context_;
  int count_;
  Arena arena_;
  void* scratch_;
};

// The parts of a step, over a few steps whose operators are observed.
void time_parts(Run& run, StepReport& report) {
  const GptConfig& model = run.buffers.model.config();
  const StepShape shape = {report.micro_batch,
                           report.block,
                           model.n_embd,
                           model.vocab_size,
                           model.padded_vocab(),
                           run.buffers.model.parameters().block_elements(),
                           static_cast<std::int64_t>(size_of(run.config.run.precision))};
  StepParts parts(run.context, shape);
  struct Observe {
    explicit Observe(OperatorObserver& observer) { observe_operators(&observer); }
    ~Observe() { observe_operators(nullptr); }
  };
  constexpr int steps = 3;
  // The first step of several waits for the host to read its data, and is left out.
  std::optional<Delay> delay;
  const auto observe = [&] {
    const Observe observe(parts);
    const std::vector<double> times = run.time(1 + steps, [&] {
      if (delay) delay->enqueue();
      parts.begin();
    });
    return std::accumulate(times.begin() + 1, times.end(), 0.0) / steps;
  };
  run.trainer->use_graphs(false);  // nobody sees the operators in a graph
  const double first = observe();  // makes the events
  parts.take(1, steps);
  constexpr double short_step = 20;  // milliseconds; in a longer one the host is ahead anyway
  if (run.context.device().is_cuda() && first < short_step) delay.emplace(run.context, 2 * first, report.rates.bytes);
  report.observed_milliseconds = observe();
  report.parts = parts.take(1, steps);
  run.trainer->use_graphs(report.graphs);
}

// The most memory that this process has had resident so far.
std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace

std::string step_models() {
  std::string names;
  for (const StepModel& model : models) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

void step(const Context& given, const StepOptions& options, const Facts& facts) {
  const Stream stream(given);  // as `greyhound train` has
  const Context& context = stream.context();
  const bool cuda = context.device().is_cuda();
  StepReport report;
  report.model = options.model;
  const Config config = config_of(options, cuda);
  if (cuda) report.rates = measure_rates(context, config.run.precision);
  Run run(context, config);
  report.precision = name_of(config.run.precision);
  report.graphs = cuda && options.graphs;
  report.recompute = options.recompute.empty() ? "none" : options.recompute;
  report.micro_batch = run.batch.micro_batch;
  report.block = run.batch.block_size;
  report.accumulation = run.batch.accumulation;
  report.parameters = run.buffers.model.parameters().count();
  report.memory_bytes = static_cast<std::int64_t>(run.buffers.plan().bytes());
  report.flops_per_token = run.buffers.model.flops_per_token(report.block);
  // First of all: where it cannot be written, nothing has been measured in vain.
  if (!options.json.empty()) write_environment(environment_path(options.json), facts);
  for (const auto& [name, value] : facts) {
    if (name == "device") report.device = value;
  }
  if (cuda) report.peak_flops = bf16_peak_flops(cuda_device_info(context.device().index).name).value_or(0);

  if (cuda && options.tuned) report.tuned_products = run.trainer->tune_products();
  run.time(4);  // makes what is made once: handles, and from the third step on the graphs of both buffers
  const double one = run.time(1).front();
  report.steps = static_cast<int>(std::clamp(1e3 * options.seconds / one, 3.0, 200.0));
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::vector<double> times = run.time(report.steps);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  report.tokens_per_second = report.tokens() * report.steps / seconds;
  std::sort(times.begin(), times.end());
  const auto at = [&](double fraction) {
    return times[static_cast<std::size_t>(std::lround(fraction * static_cast<double>(times.size() - 1)))];
  };
  report.milliseconds = at(0.5);
  report.milliseconds_p10 = at(0.1);
  report.milliseconds_p90 = at(0.9);
  time_parts(run, report);
  if (!cuda) {
    // The rates come last here: their buffers must not be in the peak.
    report.resident_bytes = peak_resident_bytes();
    report.rates = measure_rates(context, config.run.precision);
  }

  print(report);
  if (options.json.empty()) return;
  write_step(options.json, report);
}

}  // namespace greyhound::bench
