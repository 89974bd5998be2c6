#include <greyhound/models/gpt_impl.h>

#include <cmath>

namespace greyhound {
namespace {

void validate_loss(const LossSettings& loss) {
  require(loss.z_loss_multiplier >= 0 && std::isfinite(loss.z_loss_multiplier), "loss: z_loss_multiplier is ",
          loss.z_loss_multiplier, ", expected a number >= 0");
  require(loss.label_smoothing >= 0 && loss.label_smoothing < 1, "loss: label_smoothing is ", loss.label_smoothing,
          ", expected a number in [0, 1)");
  require(loss.softcap >= 0 && std::isfinite(loss.softcap), "loss: softcap is ", loss.softcap,
          ", expected a number >= 0 (0: off)");
}

// The block from front to back is the order in which backward completes the gradients: head, last norm, blocks from the
// last to the first, and the embeddings at the end. A tied head's weight is the token embedding, so it completes last.
ParameterList make_parameters(const GptConfig& config, std::vector<GradientRange>& ranges) {
  // GPT-2's initialisation; what is added to the residual stream is scaled down by the number of additions.
  const float std = 0.02f;
  const float residual_std = std / std::sqrt(2.0f * static_cast<float>(config.n_layer));
  const std::int64_t channels = config.n_embd, vocab = config.padded_vocab();
  ParameterList list;
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, float init_std) {
    list.add(name + ".weight", {out, in}, true, Init::normal, init_std);
    if (config.bias) list.add(name + ".bias", {out}, false, Init::zeros);
  };
  const auto norm = [&](const std::string& name) {
    list.add(name + ".weight", {channels}, false, Init::ones);
    if (config.bias) list.add(name + ".bias", {channels}, false, Init::zeros);
  };
  const auto vocab_matrix = [&](const std::string& name) {
    list.add(name, {vocab, channels}, true, Init::normal, std).logical_rows = config.vocab_size;
  };
  // Everything added since the last call is one range of the gradient hook.
  const auto end_range = [&] { ranges.push_back({ranges.empty() ? 0 : ranges.back().end, list.block_elements()}); };

  if (!config.tie_embeddings) {
    vocab_matrix("lm_head.weight");
    end_range();
  }
  norm("ln_f");
  end_range();
  for (std::int64_t layer = config.n_layer - 1; layer >= 0; --layer) {
    const std::string block = concat("h.", layer, ".");
    linear(block + "mlp.c_proj", channels, 4 * channels, residual_std);
    linear(block + "mlp.c_fc", 4 * channels, channels, std);
    norm(block + "ln_2");
    linear(block + "attn.c_proj", channels, channels, residual_std);
    linear(block + "attn.c_attn", 3 * channels, channels, std);
    norm(block + "ln_1");
    end_range();
  }
  list.add("wpe.weight", {config.block_size, channels}, true, Init::normal, std);
  vocab_matrix("wte.weight");
  end_range();
  return list;
}

}  // namespace

void GptConfig::validate() const {
  const auto positive = [](const char* name, std::int64_t value) {
    require(value > 0, "model: ", name, " is ", value, ", expected at least 1");
  };
  positive("n_layer", n_layer);
  positive("n_head", n_head);
  positive("n_embd", n_embd);
  positive("block_size", block_size);
  positive("vocab_size", vocab_size);
  positive("vocab_multiple", vocab_multiple);
  require(n_embd % n_head == 0, "model: n_embd ", n_embd, " is not a multiple of n_head ", n_head);
  require(dropout >= 0 && dropout < 1, "model: dropout is ", dropout, ", expected a number in [0, 1)");
}

Gpt::Impl::Impl(const GptConfig& config, DType precision, const LossSettings& loss, Recompute recompute)
    : config(config), precision(precision), loss(loss), recompute(recompute) {
  config.validate();
  validate_loss(loss);
  require(precision == DType::fp32 || precision == DType::bf16, "model: precision is ", name_of(precision),
          ", expected fp32 or bf16");
  parameters = make_parameters(config, ranges);
}

void Gpt::Impl::validate(const Context& context, const Batch& batch, bool training) const {
  require(!blocks.empty(), "model: bind has to come before the first batch");
  const Shape& shape = batch.tokens.shape;
  require(shape.rank() == 2 && shape[0] > 0 && shape[1] > 0, "batch: tokens are ", to_string(shape),
          ", expected [B, T]");
  require_tensor(batch.tokens, "batch: tokens", DType::int32, shape);
  require_tensor(batch.targets, "batch: targets", DType::int32, shape);
  require(batch.tokens.device == context.device(), "batch: tokens are on ", to_string(batch.tokens.device),
          ", the context runs on ", to_string(context.device()));
  require(shape[1] <= config.block_size, "batch: ", shape[1], " tokens in a row, block_size is ", config.block_size);
  require(shape[0] <= planned_batch && shape[1] <= planned_tokens, "batch: ", to_string(shape),
          " is larger than the planned [", planned_batch, ", ", planned_tokens, "]");
  require(!training || planned_mode == Mode::training, "model: was planned for evaluation alone");
}

Gpt::Gpt(const GptConfig& config, DType precision, const LossSettings& loss, Recompute recompute)
    : impl_(std::make_unique<Impl>(config, precision, loss, recompute)) {}
Gpt::~Gpt() = default;
Gpt::Gpt(Gpt&&) noexcept = default;

const GptConfig& Gpt::config() const { return impl_->config; }
DType Gpt::precision() const { return impl_->precision; }
const ParameterList& Gpt::parameters() const { return impl_->parameters; }

double Gpt::flops_per_token(std::int64_t tokens) const {
  const GptConfig& config = impl_->config;
  const double layers = static_cast<double>(config.n_layer), channels = static_cast<double>(config.n_embd);
  // Weights that meet every token in a product: 12 C^2 of each block, and the head. Two operations per weight forward,
  // four backward.
  const double weights = layers * 12 * channels * channels + static_cast<double>(config.vocab_size) * channels;
  // A causal row attends to (T + 1) / 2 positions on average; scores and sum of values take 2 C operations each.
  const double attention = layers * 4 * channels * (static_cast<double>(tokens) + 1) / 2;
  return 6 * weights + 3 * attention;
}

void Gpt::plan(const Context& context, ArenaPlan& plan, std::int64_t batch, std::int64_t tokens, Mode mode) {
  impl_->plan(context, plan, batch, tokens, mode);
}
void Gpt::plan_generation(const Context& context, ArenaPlan& plan) { impl_->plan_generation(context, plan); }
void Gpt::bind(const Arena& arena, const Tensor& weights, const Tensor& gradients) {
  impl_->bind(arena, weights, gradients);
}

void Gpt::forward_backward(const Context& context, const Batch& batch, const StepInfo& step, loss::LossSums& sums) {
  impl_->validate(context, batch, true);
  require_tensor(step.denominator, "step: denominator", DType::fp32, Shape{1});
  Pass pass{context, batch.tokens.shape[0], batch.tokens.shape[1]};
  pass.training = true;
  pass.accumulate = !step.first_micro_batch;
  pass.dropout = impl_->config.dropout;
  pass.drawn = dropout_origin(step.seed, step.step, batch.first_row, pass.tokens);
  pass.drawn_from = batch.dropout;

  impl_->forward(pass, batch.tokens, &sums.data()->errors);
  impl_->head(pass, batch.targets, step.denominator, sums);
  impl_->backward(pass, batch.tokens, step.gradient_complete);
}

void Gpt::evaluate(const Context& context, const Batch& batch, loss::LossSums& sums) {
  impl_->validate(context, batch, false);
  const Pass pass{context, batch.tokens.shape[0], batch.tokens.shape[1]};
  impl_->forward(pass, batch.tokens, &sums.data()->errors);
  impl_->head(pass, batch.targets, {}, sums);
}

ConstTensor Gpt::decode(const Context& context, std::int32_t token, std::int64_t position) {
  return impl_->decode(context, token, position);
}

}  // namespace greyhound
