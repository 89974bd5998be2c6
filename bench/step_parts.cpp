#include "step_parts.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace greyhound::bench {

namespace {

// Which layer's weight [out, in] a product has, by its shape; the head's has a side as long as the vocabulary.
std::string layer_name(const StepShape& shape, std::int64_t out, std::int64_t in) {
  const std::int64_t C = shape.channels;
  if (out == 3 * C && in == C) return "qkv product";
  if (out == C && in == C) return "attention projection";
  if (out == 4 * C && in == C) return "mlp up";
  if (out == C && in == 4 * C) return "mlp down";
  return "other product";
}

std::string product_name(const StepShape& shape, const OperatorCall& call) {
  const auto is_vocab = [&](std::int64_t size) { return size == shape.vocab || size == shape.padded_vocab; };
  // input [rows, in] x W^T; grad_out [rows, out] x W; grad_out^T x input.
  if (call.transpose_b) {
    return is_vocab(call.n) ? "head logits" : layer_name(shape, call.n, call.k) + ", forward";
  }
  if (call.transpose_a) {
    return is_vocab(call.m) ? "head grad_weight" : layer_name(shape, call.m, call.n) + ", grad_weight";
  }
  return is_vocab(call.k) ? "head grad_input" : layer_name(shape, call.k, call.n) + ", grad_input";
}

// What one call of an operator other than a product does: bytes read and written, or operations of attention.
struct Kind {
  const char* name;
  const char* part;
  bool is_product;
  double (*work)(const StepShape&);
};

double wide(const StepShape& s) { return static_cast<double>(s.rows() * s.channels * s.element_bytes); }  // [N, C]
// Two products over half of the T x T positions.
double attention(const StepShape& s) {
  return 2.0 * static_cast<double>(s.rows() * s.channels) * static_cast<double>(s.tokens + 1);
}

const Kind kinds[] = {
    {"embedding_forward", "embedding, forward", false, [](const StepShape& s) { return 2 * wide(s); }},
    {"embedding_backward", "embedding, backward", false, [](const StepShape& s) { return wide(s); }},
    {"layernorm_forward", "layer norm, forward", false, [](const StepShape& s) { return 2 * wide(s); }},
    {"residual_layernorm", "residual and layer norm, forward", false, [](const StepShape& s) { return 4 * wide(s); }},
    {"layernorm_backward", "layer norm, backward", false, [](const StepShape& s) { return 4 * wide(s); }},
    {"residual_forward", "residual", false, [](const StepShape& s) { return 3 * wide(s); }},
    {"dropout_apply", "dropout", false, [](const StepShape& s) { return 2 * wide(s); }},
    {"gelu_forward", "gelu, forward", false, [](const StepShape& s) { return 8 * wide(s); }},
    // Of the 3 C columns of qkv. Without dropout every other bias gradient is summed where its operand is written.
    {"column_sum", "bias gradients", false, [](const StepShape& s) { return 3 * wide(s); }},
    {"attention_forward", "attention, forward", true, attention},
    {"attention_backward", "attention, backward", true, [](const StepShape& s) { return 2.5 * attention(s); }},
    {"cross_entropy_rows", "loss", false, nullptr},
    {"gradient_norm", "gradient norm", false,
     [](const StepShape& s) { return 4.0 * static_cast<double>(s.parameters); }},
    // Reads weight, gradient and both moments, writes all but the gradient; and bf16 weights where there are such.
    {"adamw", "optimizer", false,
     [](const StepShape& s) {
       return (28.0 + (s.element_bytes == 2 ? 2.0 : 0.0)) * static_cast<double>(s.parameters);
     }},
};

StepPart part_of(const StepShape& shape, const OperatorCall& call) {
  StepPart part;
  part.calls = 1;
  const bool with_gelu = std::string_view(call.name) == "matmul_gelu_backward";
  if (with_gelu || std::string_view(call.name) == "matmul") {
    part.name = with_gelu ? "mlp down and gelu, grad_input" : product_name(shape, call);
    part.is_product = true;
    part.work = 2.0 * static_cast<double>(call.m) * static_cast<double>(call.n) * static_cast<double>(call.k);
    return part;
  }
  const auto* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                  [&](const Kind& known) { return std::string_view(call.name) == known.name; });
  if (kind == std::end(kinds)) {
    part.name = call.name;
    std::replace(part.name.begin(), part.name.end(), '_', ' ');
    return part;
  }
  part.name = kind->part;
  part.is_product = kind->is_product;
  if (kind->work != nullptr) part.work = kind->work(shape);
  return part;
}

}  // namespace

void StepParts::begin() { record({nullptr}); }

void StepParts::enqueued(const Context&, const OperatorCall& call) { record(call); }

void StepParts::record(const OperatorCall& call) {
  if (used_ == marks_.size()) marks_.push_back({Event(context_), call});
  Mark& mark = marks_[used_++];
  mark.call = call;
  mark.event.record(context_);
}

std::vector<StepPart> StepParts::take(int skipped, int steps) {
  context_.synchronize();
  std::vector<StepPart> parts;
  std::map<std::string, std::size_t> index;
  int step = 0;
  for (std::size_t i = 1; i < used_; ++i) {
    if (marks_[i].call.name == nullptr) {  // between two steps
      ++step;
      continue;
    }
    if (step < skipped) continue;
    const StepPart one = part_of(shape_, marks_[i].call);
    const auto [place, is_new] = index.try_emplace(one.name, parts.size());
    if (is_new) parts.push_back({one.name, one.is_product});
    StepPart& part = parts[place->second];
    part.calls += 1;
    part.work += one.work / steps;
    part.milliseconds += 1e3 * marks_[i].event.seconds_since(marks_[i - 1].event) / steps;
  }
  for (StepPart& part : parts) {
    part.calls /= steps;
    // A tile is read and written; all tiles together are the logits of all micro-batches. The head's products say how
    // many rows they had.
    if (part.name == "loss") {
      for (const StepPart& head : parts) {
        if (head.name != "head logits") continue;
        const double logits = head.work / (2.0 * static_cast<double>(shape_.channels));
        part.work = 2.0 * logits * static_cast<double>(shape_.element_bytes);
      }
    }
  }
  used_ = 0;
  return parts;
}

}  // namespace greyhound::bench
