#include <greyhound/train/memory_report.h>

#include <greyhound/core/arena.h>
#include <greyhound/train/training_buffers.h>

#include <vector>

namespace greyhound {

std::int64_t largest_micro_batch(const Context& context, const Config& config, std::int64_t micro_batch,
                                 std::int64_t free_bytes) {
  std::int64_t fits = 0, too_large = micro_batch;  // needs grow with the micro-batch
  while (too_large - fits > 1) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    const TrainingBuffers buffers(context, config, middle);
    (static_cast<std::int64_t>(buffers.plan().bytes()) <= free_bytes ? fits : too_large) = middle;
  }
  return fits;
}

std::string out_of_memory_message(const Context& context, const Config& config, std::int64_t micro_batch,
                                  std::int64_t needed_bytes, std::int64_t free_bytes) {
  const std::int64_t fits = largest_micro_batch(context, config, micro_batch, free_bytes);
  std::string keys = "model.block_size, model.n_embd, model.n_layer";
  if (config.loss.max_workspace_mb != 0) keys = "loss.max_workspace_mb, " + keys;
  if (config.run.precision == DType::fp32) keys += " or run.precision=bf16";
  const std::string advice = fits > 0
                                 ? concat("train.micro_batch=", fits, " is the largest that fits (now ", micro_batch,
                                          "); ", keys, " shrink it too")
                                 : concat("not even train.micro_batch=1 fits (now ", micro_batch, "); shrink ", keys);
  return concat("out of memory on ", to_string(context.device()), ": training needs ",
                format_bytes(static_cast<double>(needed_bytes)), ", ", format_bytes(static_cast<double>(free_bytes)),
                " are free; ", advice);
}

}  // namespace greyhound
