#include <greyhound/train/training_buffers.h>

#include <greyhound/train/build_model.h>

namespace greyhound {

TrainingBuffers::TrainingBuffers(const Context& context, const Config& config, std::int64_t micro_batch)
    : model(build_model(config)), optimizer(model.parameters(), config.run.precision, config.optimizer) {
  const std::int64_t block_size = config.model.block_size;
  optimizer.plan(context, plan_);
  model.plan(context, plan_, micro_batch, block_size, Gpt::Mode::training);
  if (config.sample.every > 0) model.plan_generation(context, plan_);
  batch.plan(plan_, micro_batch, block_size);
}

void TrainingBuffers::allocate(const Context& context) {
  arena_ = Arena(context, plan_);
  optimizer.bind(arena_);
  model.bind(arena_, optimizer.working_weights(), optimizer.gradients());
  batch.bind(context, arena_);
}

}  // namespace greyhound
