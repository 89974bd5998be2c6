#include <greyhound/train/memory_report.h>

#include <greyhound/core/arena.h>
#include <greyhound/train/checkpoint_saver.h>
#include <greyhound/train/loader.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace greyhound {

namespace {

constexpr const char* host_batch_region = "host batch";
constexpr const char* snapshot_region = "checkpoint snapshot";

// The keys that shrink a region of the plan.
std::string keys_of(const Config& config, const std::string& region) {
  if (region == host_batch_region) return "train.batch_tokens, train.micro_batch, model.block_size";
  if (region == snapshot_region) return "checkpoint.background=false, model.n_embd, model.n_layer, model.vocab_size";
  if (region == "loss workspace") return "model.vocab_size, loss.max_workspace_mb";
  if (region == "generation") return "model.block_size, model.n_layer, model.n_embd";
  if (region == "activations" || region == "batch") {
    const bool can_recompute = region == "activations" && config.train.recompute != Recompute::block;
    return concat("train.micro_batch, ", can_recompute ? "train.recompute, " : "",
                  "model.block_size, model.n_layer, model.n_embd",
                  config.run.precision == DType::fp32 ? " or run.precision=bf16" : "");
  }
  if (region == "reduction") return "distributed.reduce_dtype=fp32, model.n_embd, model.n_layer, model.vocab_size";
  return "model.n_embd, model.n_layer, model.vocab_size";  // parameters, gradients, optimiser
}

}  // namespace

std::int64_t memory_for_plan(Device device) {
  constexpr std::int64_t loaded_later = std::int64_t{256} << 20;
  const std::int64_t free = available_memory(device);
  return device.is_cuda() ? std::max<std::int64_t>(0, free - loaded_later) : free;
}

std::int64_t host_batch_bytes(const Config& config, std::int64_t micro_batch, std::int64_t ranks) {
  const std::int64_t block_size = config.model.block_size;
  const std::int64_t rows =
      config.train.batch_tokens == 0 ? micro_batch : config.train.batch_tokens / block_size / ranks;
  return host_batch_bytes(rows, micro_batch, block_size);
}

ArenaPlan memory_plan(const Context& context, const Config& config, std::int64_t micro_batch, std::int64_t ranks) {
  const TrainingBuffers buffers(context, config, micro_batch, ranks);
  ArenaPlan plan = buffers.plan();
  if (context.device().is_cpu()) {
    plan.add(host_batch_region, "rows", DType::uint8, {host_batch_bytes(config, micro_batch, ranks)});
    const std::int64_t snapshot = checkpoint_snapshot_bytes(config, buffers.model.parameters());
    if (snapshot > 0) plan.add(snapshot_region, "state", DType::uint8, {snapshot});
  }
  return plan;
}

std::int64_t ranks_on_host(std::int64_t ranks) {
  // Open MPI, MPICH and Intel MPI.
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const char* text = std::getenv(name);
    const long long local = text == nullptr ? 0 : std::atoll(text);
    if (local >= 1 && local <= ranks) return local;
  }
  return ranks;
}

std::int64_t largest_micro_batch(const Context& context, const Config& config, std::int64_t micro_batch,
                                 std::int64_t free_bytes, std::int64_t ranks) {
  std::int64_t fits = 0, too_large = micro_batch;  // needs grow with the micro-batch
  while (too_large - fits > 1) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    const auto needed = static_cast<std::int64_t>(memory_plan(context, config, middle, ranks).bytes());
    (needed <= free_bytes ? fits : too_large) = middle;
  }
  return fits;
}

std::string out_of_memory_message(const Context& context, const Config& config, std::int64_t micro_batch,
                                  std::int64_t needed_bytes, std::int64_t free_bytes, std::int64_t ranks) {
  const std::vector<ArenaPlan::Region> regions = memory_plan(context, config, micro_batch, ranks).regions();
  const ArenaPlan::Region& largest =
      *std::max_element(regions.begin(), regions.end(),
                        [](const ArenaPlan::Region& a, const ArenaPlan::Region& b) { return a.bytes < b.bytes; });
  const std::int64_t fits = largest_micro_batch(context, config, micro_batch, free_bytes, ranks);
  const std::string first =
      fits > 0 ? concat("train.micro_batch=", fits, " is the largest that fits (now ", micro_batch, ")")
               : concat("not even train.micro_batch=1 fits (now ", micro_batch, ")");
  return concat("out of memory on ", to_string(context.device()), ": training needs ",
                format_bytes(static_cast<double>(needed_bytes)), ", ", format_bytes(static_cast<double>(free_bytes)),
                " are free; ", first, "; the most is in ", largest.name, " (",
                format_bytes(static_cast<double>(largest.bytes)), "), which ", keys_of(config, largest.name),
                " shrink");
}

}  // namespace greyhound
