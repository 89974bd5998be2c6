// Where the buffers of a model are: planned by name and shape, looked up after the arena was made.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/embedding.h>
#include <greyhound/kernels/layernorm.h>
#include <greyhound/models/gpt_impl.h>

#include <algorithm>

namespace greyhound {
namespace {

constexpr const char* activations_region = "activations";
constexpr const char* loss_region = "loss workspace";
constexpr const char* generation_region = "generation";

// The first `rows` rows of a buffer planned for more.
Tensor first_rows(const Tensor& buffer, std::int64_t rows) {
  if (!buffer) return buffer;
  return buffer.shape.rank() == 1 ? buffer.slice(0, {rows}) : buffer.row_range(0, rows);
}

// Rows of the loss's chunks in training on a GPU, where no budget says otherwise. Every chunk's product reads and
// writes the whole fp32 gradient of the head's weight, so few large chunks beat the loss module's own many small ones;
// a quarter of the rows keeps the tile of logits small beside the activations.
std::int64_t training_chunk_rows(std::int64_t rows) {
  constexpr std::int64_t least = 2048, most = 8192, granule = 64;
  return std::clamp((rows / 4 + granule - 1) / granule * granule, least, most);
}

Shape byte_shape(std::size_t bytes) { return {static_cast<std::int64_t>(bytes)}; }

}  // namespace

// What a block keeps until its backward, and what it only needs while it runs: of the latter all blocks share one
// buffer. Evaluation looks back at nothing.
void Gpt::Impl::plan_blocks(ArenaPlan& plan, std::int64_t rows) {
  const bool training = planned_mode == Mode::training;
  const bool keeps_most = training && recompute != Recompute::block;
  const bool keeps_gelu = training && recompute == Recompute::none;
  block_slots.assign(static_cast<std::size_t>(config.n_layer), {});
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    using Slots = BlockActivations<Slot>;
    Slots& slots = block_slots[layer];
    const auto add = [&](bool kept, Slot Slots::*slot, const char* name, const Shape& shape, DType dtype) {
      slots.*slot = kept || layer == 0 ? plan.add(activations_region, concat("h.", layer, ".", name), dtype, shape)
                                       : block_slots[0].*slot;
    };
    const auto wide = [&](bool kept, Slot Slots::*slot, const char* name, std::int64_t factor) {
      add(kept, slot, name, {rows, factor * config.n_embd}, precision);
    };
    const auto per_row = [&](Slot Slots::*slot, const char* name) { add(keeps_most, slot, name, {rows}, DType::fp32); };
    if (training && !recomputes_norms()) {
      wide(keeps_most, &Slots::normed_1, "normed_1", 1);
      wide(keeps_most, &Slots::normed_2, "normed_2", 1);
    } else {
      slots.normed_1 = slots.normed_2 = shared_slots.normed_f;  // each is read before the next is made
    }
    per_row(&Slots::mean_1, "mean_1");
    per_row(&Slots::rstd_1, "rstd_1");
    wide(keeps_most, &Slots::qkv, "qkv", 3);
    wide(keeps_most, &Slots::attention, "attention", 1);
    add(keeps_most, &Slots::lse, "lse", {rows, config.n_head}, DType::fp32);
    wide(keeps_most, &Slots::residual_mid, "residual_mid", 1);
    per_row(&Slots::mean_2, "mean_2");
    per_row(&Slots::rstd_2, "rstd_2");
    slots.hidden = no_slot;
    if (training) wide(keeps_most, &Slots::hidden, "hidden", 4);
    wide(keeps_gelu, &Slots::gelu, "gelu", 4);
    wide(training, &Slots::residual, "residual", 1);
  }
}

void Gpt::Impl::plan(const Context& context, ArenaPlan& plan, std::int64_t batch, std::int64_t tokens, Mode mode) {
  require(batch > 0 && tokens > 0 && tokens <= config.block_size, "model: cannot plan micro-batches of [", batch, ", ",
          tokens, "], block_size is ", config.block_size);
  planned_batch = batch;
  planned_tokens = tokens;
  planned_mode = mode;
  const bool training = mode == Mode::training;
  const std::int64_t rows = batch * tokens, channels = config.n_embd;
  const auto add = [&](const std::string& name, const Shape& shape, DType dtype) {
    return plan.add(activations_region, name, dtype, shape);
  };
  const auto wide = [&](const std::string& name, std::int64_t factor) {
    return add(name, {rows, factor * channels}, precision);
  };
  const auto per_row = [&](const std::string& name) { return add(name, {rows}, DType::fp32); };

  shared_slots.embedded = wide("embedded", 1);
  shared_slots.normed_f = wide("normed_f", 1);
  shared_slots.mean_f = per_row("mean_f");
  shared_slots.rstd_f = per_row("rstd_f");
  shared_slots.grad_residual = training ? wide("grad_residual", 1) : no_slot;
  plan_blocks(plan, rows);
  shared_slots.workspace =
      add("workspace", byte_shape(workspace_bytes(context, batch, tokens, training)), DType::uint8);

  loss::PlanOptions options;
  options.max_workspace_bytes = loss.max_workspace_bytes;
  options.grad_input = options.grad_weight = training;
  options.grad_weight_accum_dtype = loss.grad_weight_accum_dtype;
  if (training && context.device().is_cuda() && loss.max_workspace_bytes == 0) {
    options.chunk_rows = training_chunk_rows(rows);
  }
  loss_plan = loss::plan_chunked_linear_loss(
      context, {rows, channels, config.vocab_size, precision, config.padded_vocab()}, options);
  shared_slots.loss_workspace =
      plan.add(loss_region, "loss_workspace", DType::uint8, byte_shape(loss_plan.workspace_bytes));
}

// One operator runs at a time, so the scratch of the hungriest one serves all. A micro-batch of fewer rows than planned
// may take more, because its work is cut otherwise: cuts change at multiples of 64 rows, up to some 4096.
std::size_t Gpt::Impl::workspace_bytes(const Context& context, std::int64_t batch, std::int64_t tokens,
                                       bool backward) const {
  constexpr std::int64_t granule = 64, last_change = 4096;
  const std::int64_t rows = batch * tokens;
  std::size_t bytes =
      std::max(row_workspace_bytes(context, rows, backward),
               attention_workspace_bytes(context, precision, batch, tokens, config.n_embd, config.n_head));
  for (std::int64_t fewer = granule; fewer < std::min(rows, last_change + 1); fewer += granule) {
    bytes = std::max(bytes, row_workspace_bytes(context, fewer, backward));
  }
  return bytes;
}

// Scratch of the operators that see `rows` rows, whatever their sequences.
std::size_t Gpt::Impl::row_workspace_bytes(const Context& context, std::int64_t rows, bool backward) const {
  const std::int64_t channels = config.n_embd;
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return linear_workspace_bytes(context, precision, rows, in, out, backward);
  };
  std::size_t bytes = std::max({linear(channels, 3 * channels), linear(channels, channels),
                                linear(channels, 4 * channels), linear(4 * channels, channels)});
  if (backward) {
    bytes = std::max({bytes, layernorm_backward_workspace_bytes(context, rows, channels),
                      embedding_backward_workspace_bytes(context, rows, config.vocab_size, channels)});
  }
  return bytes;
}

void Gpt::Impl::plan_generation(const Context& context, ArenaPlan& plan) {
  generation_planned = true;
  const std::int64_t channels = config.n_embd, padded = config.padded_vocab();
  const auto add = [&](const std::string& name, const Shape& shape, DType dtype) {
    return plan.add(generation_region, name, dtype, shape);
  };
  const auto wide = [&](const char* name, std::int64_t factor) { return add(name, {1, factor * channels}, precision); };
  key_slots.clear();
  value_slots.clear();
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    const Shape cache = {1, config.block_size, channels};
    key_slots.push_back(add(concat("h.", layer, ".keys"), cache, precision));
    value_slots.push_back(add(concat("h.", layer, ".values"), cache, precision));
  }
  GenerationBuffers<Slot>& slots = generation_slots;
  slots.residual = wide("residual", 1);
  slots.normed = wide("normed", 1);
  slots.qkv = wide("qkv", 3);
  slots.attention = wide("attention", 1);
  slots.branch = wide("branch", 1);
  slots.hidden = wide("hidden", 4);
  slots.logits = add("logits", {1, padded}, DType::fp32);
  const std::size_t attention =
      attention_workspace_bytes(context, precision, 1, config.block_size, channels, config.n_head);
  const std::size_t bytes = std::max({attention, workspace_bytes(context, 1, 1, false),
                                      linear_workspace_bytes(context, precision, 1, channels, padded, false)});
  slots.workspace = add("workspace", byte_shape(bytes), DType::uint8);
}

void Gpt::Impl::bind(const Arena& arena, const Tensor& weights, const Tensor& gradients) {
  require_tensor(weights, "model: weights", precision, Shape{parameters.block_elements()});
  const bool training = planned_batch > 0 && planned_mode == Mode::training;
  if (training) require_tensor(gradients, "model: gradients", DType::fp32, Shape{parameters.block_elements()});

  const ParameterBlocks lookup{parameters, weights, training ? gradients : Tensor{}};
  token_embedding = lookup.weight("wte.weight");
  position_embedding = lookup.weight("wpe.weight");
  head_weight = config.tie_embeddings ? token_embedding : lookup.weight("lm_head.weight");
  ln_f = lookup.norm("ln_f", config.bias);
  blocks.clear();
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string name = concat("h.", layer, ".");
    const auto linear = [&](const char* part) { return lookup.linear(name + part, config.bias); };
    blocks.push_back({lookup.norm(name + "ln_1", config.bias), linear("attn.c_attn"), linear("attn.c_proj"),
                      lookup.norm(name + "ln_2", config.bias), linear("mlp.c_fc"), linear("mlp.c_proj")});
  }

  const auto place = [&](Tensor& tensor, Slot slot) { tensor = slot == no_slot ? Tensor{} : arena[slot]; };
  block_buffers.resize(block_slots.size());
  for (std::size_t layer = 0; layer < block_slots.size(); ++layer) {
    block_buffers[layer].zip(block_slots[layer], place);
  }
  if (planned_batch > 0) {
    shared.zip(shared_slots, place);
    workspace = Workspace(shared.workspace);
    loss_workspace = Workspace(shared.loss_workspace);
  }
  if (generation_planned) bind_generation(arena);
}

void Gpt::Impl::bind_generation(const Arena& arena) {
  const GenerationBuffers<Slot>& slots = generation_slots;
  generation = {arena[slots.residual], arena[slots.normed], arena[slots.attention], arena[slots.branch],
                arena[slots.qkv],      arena[slots.hidden], arena[slots.logits],    arena[slots.workspace]};
  generation_workspace = Workspace(generation.workspace);
  keys.clear();
  values.clear();
  for (const Slot slot : key_slots) keys.push_back(arena[slot]);
  for (const Slot slot : value_slots) values.push_back(arena[slot]);
}

BlockActivations<Tensor> Gpt::Impl::activations(const Pass& pass, std::int64_t layer) const {
  BlockActivations<Tensor> view;
  view.zip(block_buffers[pass.training ? layer : 0],
           [&](Tensor& part, const Tensor& whole) { part = first_rows(whole, pass.rows()); });
  view.lse = view.lse.reshape({pass.batch, config.n_head, pass.tokens});
  return view;
}

SharedActivations<Tensor> Gpt::Impl::activations(const Pass& pass) const {
  SharedActivations<Tensor> view = shared;
  for (Tensor* part : {&view.embedded, &view.normed_f, &view.mean_f, &view.rstd_f, &view.grad_residual}) {
    *part = first_rows(*part, pass.rows());
  }
  return view;
}

}  // namespace greyhound
