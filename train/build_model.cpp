#include <greyhound/train/build_model.h>

#include <greyhound/train/loader.h>

namespace greyhound {

Gpt build_model(const Config& config) {
  GptConfig model;
  model.n_layer = config.model.n_layer;
  model.n_head = config.model.n_head;
  model.n_embd = config.model.n_embd;
  model.block_size = config.model.block_size;
  model.vocab_size = config.model.vocab_size;
  model.vocab_multiple = config.model.vocab_multiple;
  model.bias = config.model.bias;
  model.tie_embeddings = config.model.tie_embeddings;
  model.dropout = static_cast<float>(config.model.dropout);

  LossSettings loss;
  loss.z_loss_multiplier = static_cast<float>(config.loss.z_loss_multiplier);
  loss.label_smoothing = static_cast<float>(config.loss.label_smoothing);
  loss.softcap = static_cast<float>(config.loss.softcap);
  loss.ignore_index = ignored_target;
  loss.max_workspace_bytes = static_cast<std::size_t>(config.loss.max_workspace_mb) << 20;
  loss.grad_weight_accum_dtype = config.loss.grad_weight_accum_dtype;
  return Gpt(model, config.run.precision, loss, config.train.recompute);
}

}  // namespace greyhound
