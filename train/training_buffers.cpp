#include <greyhound/train/training_buffers.h>

#include <greyhound/loss/plan.h>
#include <greyhound/train/build_model.h>

#include <algorithm>

namespace greyhound {

namespace {

// The loss module would refuse the budget in its own words; users know the key.
void check_loss_budget(const Context& context, const Config& config, std::int64_t rows, const Gpt& model) {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  if (config.loss.max_workspace_mb == 0) return;
  loss::PlanOptions options;
  options.chunk_rows = 1;
  options.grad_weight_accum_dtype = config.loss.grad_weight_accum_dtype;
  const GptConfig& sizes = model.config();
  const auto bytes_with = [&](std::int64_t chunk_rows) {
    options.chunk_rows = chunk_rows;
    return loss::plan_chunked_linear_loss(
               context, {rows, sizes.n_embd, sizes.vocab_size, config.run.precision, sizes.padded_vocab()}, options)
        .workspace_bytes;
  };
  const std::size_t budget = static_cast<std::size_t>(config.loss.max_workspace_mb) * mebibyte;
  const std::size_t one_row = bytes_with(1);
  if (one_row <= budget) return;
  const std::size_t least = std::min(one_row, bytes_with(rows));  // a single chunk needs no accumulator
  require(least <= budget, "loss.max_workspace_mb ", config.loss.max_workspace_mb,
          " MiB is too small for model.n_embd ", sizes.n_embd, " and a vocabulary of ", sizes.vocab_size,
          "; the smallest that works is ", (least + mebibyte - 1) / mebibyte, " MiB (0: chosen)");
}

}  // namespace

TrainingBuffers::TrainingBuffers(const Context& context, const Config& config, std::int64_t micro_batch,
                                 std::int64_t ranks)
    : model(build_model(config)),
      optimizer(model.parameters(), config.run.precision, config.optimizer),
      reducer(config.distributed) {
  const std::int64_t block_size = config.model.block_size;
  check_loss_budget(context, config, micro_batch * block_size, model);
  optimizer.plan(context, plan_);
  reducer.plan(plan_, model.parameters().block_elements(), ranks);
  model.plan(context, plan_, micro_batch, block_size, Gpt::Mode::training);
  if (config.sample.every > 0) model.plan_generation(context, plan_);
  batch.plan(context, plan_, micro_batch, block_size);
}

void TrainingBuffers::allocate(const Context& context) {
  arena_ = Arena(context, plan_);
  optimizer.bind(arena_);
  reducer.bind(arena_, optimizer.gradients());
  model.bind(arena_, optimizer.working_weights(), optimizer.gradients());
  batch.bind(context, arena_);
}

}  // namespace greyhound
