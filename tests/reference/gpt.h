// The GPT-2 family in fp64 and plain loops, forward and backward: what the model is tested against. Nothing here is
// shared with the implementation but the configuration structs.
#pragma once

#include <greyhound/models/gpt.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace greyhound::reference {

using Values = std::vector<double>;
using NamedValues = std::map<std::string, Values>;  // by parameter name; matrices [out, in], row-major

// Factors that dropout multiplies by: 0 or 1 / (1 - p). Not set: 1. Sites count as the model does: 0 after the
// embedding, 1 + 3 layer attention weights, 2 + 3 layer and 3 + 3 layer the projections.
struct GptMasks {
  std::function<double(int site, std::int64_t row, std::int64_t column)> element;
  std::function<double(int site, std::int64_t row, std::int64_t head, std::int64_t s)> attention;
};

struct GptBatch {
  std::int64_t batch = 0, tokens = 0;
  std::vector<std::int32_t> inputs, targets;  // [B * T]
  std::int64_t rows() const { return batch * tokens; }
};

struct GptResult {
  double ce_sum = 0, z_sum = 0;  // over valid rows
  std::int64_t n_valid = 0;
  Values logits;          // [N, V], after the softcap
  NamedValues gradients;  // of (ce_sum + z_loss_multiplier z_sum) / denominator
};

class Gpt {
 public:
  Gpt(const GptConfig& config, const LossSettings& loss, const NamedValues& weights, const GptMasks& masks = {})
      : c_(config), loss_(loss), w_(weights), masks_(masks) {}

  GptResult forward(const GptBatch& batch) {
    batch_ = &batch;
    const std::int64_t n = batch.rows(), d = c_.n_embd;
    GptResult result;
    x_.assign(c_.n_layer + 1, Values(n * d));
    blocks_.assign(c_.n_layer, {});
    for (std::int64_t i = 0; i < n * d; ++i) {
      const std::int64_t row = i / d, column = i % d;
      x_[0][i] = (w("wte.weight")[batch.inputs[row] * d + column] + w("wpe.weight")[row % batch.tokens * d + column]) *
                 element(0, row, column);
    }
    for (std::int64_t layer = 0; layer < c_.n_layer; ++layer) x_[layer + 1] = block(layer, x_[layer]);
    normed_f_ = norm("ln_f", x_.back());
    result.logits = linear(head_name(), normed_f_, c_.vocab_size);  // the first V rows of the padded matrix
    for (double& z : result.logits) z = loss_.softcap > 0 ? loss_.softcap * std::tanh(z / loss_.softcap) : z;
    row_losses(result);
    return result;
  }

  GptResult forward_backward(const GptBatch& batch, double denominator) {
    GptResult result = forward(batch);
    g_.clear();
    for (const auto& [name, values] : w_) g_[name].assign(values.size(), 0.0);
    const std::int64_t n = batch.rows(), d = c_.n_embd;
    const Values grad_normed = linear_backward(head_name(), normed_f_, grad_logits(result, denominator));
    Values grad = norm_backward("ln_f", x_.back(), grad_normed);
    for (std::int64_t layer = c_.n_layer - 1; layer >= 0; --layer) grad = block_backward(layer, x_[layer], grad);
    for (std::int64_t i = 0; i < n * d; ++i) {
      const std::int64_t row = i / d, column = i % d;
      const double value = grad[i] * element(0, row, column);
      g_["wte.weight"][batch.inputs[row] * d + column] += value;
      g_["wpe.weight"][row % batch.tokens * d + column] += value;
    }
    result.gradients = g_;
    return result;
  }

 private:
  struct Block {  // what a block's backward looks at
    Values normed_1, qkv, weights, attention, mid, normed_2, hidden, gelu;
  };

  const Values& w(const std::string& name) const { return w_.at(name); }
  std::string head_name() const { return c_.tie_embeddings ? "wte" : "lm_head"; }
  double element(int site, std::int64_t row, std::int64_t column) const {
    return masks_.element ? masks_.element(site, row, column) : 1.0;
  }
  double attention_factor(int site, std::int64_t row, std::int64_t head, std::int64_t s) const {
    return masks_.attention ? masks_.attention(site, row, head, s) : 1.0;
  }

  // input [N, in] W^T + b, for the first `out` rows of W.
  Values linear(const std::string& name, const Values& input, std::int64_t out) const {
    const std::int64_t n = batch_->rows(), in = static_cast<std::int64_t>(input.size()) / n;
    const auto bias = w_.find(name + ".bias");
    const Values& weight = w(name + ".weight");
    Values result(n * out);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = bias == w_.end() ? 0 : bias->second[o];
        for (std::int64_t k = 0; k < in; ++k) sum += input[i * in + k] * weight[o * in + k];
        result[i * out + o] = sum;
      }
    }
    return result;
  }
  Values linear_backward(const std::string& name, const Values& input, const Values& grad_out) {
    const std::int64_t n = batch_->rows(), in = static_cast<std::int64_t>(input.size()) / n;
    const std::int64_t out = static_cast<std::int64_t>(grad_out.size()) / n;
    const auto bias = g_.find(name + ".bias");
    const Values& weight = w(name + ".weight");
    Values& grad_weight = g_[name + ".weight"];
    Values grad_input(n * in);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t o = 0; o < out; ++o) {
        const double g = grad_out[i * out + o];
        if (bias != g_.end()) bias->second[o] += g;
        for (std::int64_t k = 0; k < in; ++k) {
          grad_input[i * in + k] += g * weight[o * in + k];
          grad_weight[o * in + k] += g * input[i * in + k];
        }
      }
    }
    return grad_input;
  }

  struct Statistics {
    double mean = 0, rstd = 0;
  };
  Statistics statistics(const double* row) const {
    const std::int64_t d = c_.n_embd;
    double mean = 0, variance = 0;
    for (std::int64_t k = 0; k < d; ++k) mean += row[k] / d;
    for (std::int64_t k = 0; k < d; ++k) variance += (row[k] - mean) * (row[k] - mean) / d;
    return {mean, 1 / std::sqrt(variance + 1e-5)};
  }
  Values norm(const std::string& name, const Values& input) const {
    const std::int64_t d = c_.n_embd;
    const auto bias = w_.find(name + ".bias");
    Values out(input.size());
    for (std::int64_t i = 0; i < batch_->rows(); ++i) {
      const Statistics s = statistics(&input[i * d]);
      for (std::int64_t k = 0; k < d; ++k) {
        out[i * d + k] =
            (input[i * d + k] - s.mean) * s.rstd * w(name + ".weight")[k] + (bias == w_.end() ? 0 : bias->second[k]);
      }
    }
    return out;
  }
  Values norm_backward(const std::string& name, const Values& input, const Values& grad_out) {
    const std::int64_t d = c_.n_embd;
    const auto bias = g_.find(name + ".bias");
    Values grad(input.size());
    for (std::int64_t i = 0; i < batch_->rows(); ++i) {
      const Statistics s = statistics(&input[i * d]);
      double mean_g = 0, mean_gx = 0;  // g: gradient of xhat
      for (std::int64_t k = 0; k < d; ++k) {
        const double xhat = (input[i * d + k] - s.mean) * s.rstd, g = grad_out[i * d + k] * w(name + ".weight")[k];
        mean_g += g / d;
        mean_gx += g * xhat / d;
        g_[name + ".weight"][k] += grad_out[i * d + k] * xhat;
        if (bias != g_.end()) bias->second[k] += grad_out[i * d + k];
      }
      for (std::int64_t k = 0; k < d; ++k) {
        const double xhat = (input[i * d + k] - s.mean) * s.rstd, g = grad_out[i * d + k] * w(name + ".weight")[k];
        grad[i * d + k] = s.rstd * (g - mean_g - xhat * mean_gx);
      }
    }
    return grad;
  }

  static std::string name(std::int64_t layer, const char* part) { return "h." + std::to_string(layer) + "." + part; }

  Values block(std::int64_t layer, const Values& x) {
    const std::int64_t d = c_.n_embd;
    Block& b = blocks_[layer];
    b.normed_1 = norm(name(layer, "ln_1"), x);
    b.qkv = linear(name(layer, "attn.c_attn"), b.normed_1, 3 * d);
    attend(layer, b);
    b.mid = x;
    add_dropped(2 + 3 * static_cast<int>(layer), linear(name(layer, "attn.c_proj"), b.attention, d), b.mid);
    b.normed_2 = norm(name(layer, "ln_2"), b.mid);
    b.hidden = linear(name(layer, "mlp.c_fc"), b.normed_2, 4 * d);
    b.gelu = b.hidden;
    for (double& h : b.gelu) h = 0.5 * h * (1 + std::tanh(gelu_inner(h)));
    Values out = b.mid;
    add_dropped(3 + 3 * static_cast<int>(layer), linear(name(layer, "mlp.c_proj"), b.gelu, d), out);
    return out;
  }

  Values block_backward(std::int64_t layer, const Values& x, const Values& grad_out) {
    const Block& b = blocks_[layer];
    Values grad_hidden =
        linear_backward(name(layer, "mlp.c_proj"), b.gelu, dropped(3 + 3 * static_cast<int>(layer), grad_out));
    for (std::size_t i = 0; i < grad_hidden.size(); ++i) {
      const double h = b.hidden[i], t = std::tanh(gelu_inner(h));
      grad_hidden[i] *= 0.5 * (1 + t) + 0.5 * h * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * h * h);
    }
    Values grad_mid = grad_out;
    add(norm_backward(name(layer, "ln_2"), b.mid, linear_backward(name(layer, "mlp.c_fc"), b.normed_2, grad_hidden)),
        grad_mid);
    const Values grad_attention =
        linear_backward(name(layer, "attn.c_proj"), b.attention, dropped(2 + 3 * static_cast<int>(layer), grad_mid));
    const Values grad_qkv = attend_backward(layer, b, grad_attention);
    Values grad = grad_mid;
    add(norm_backward(name(layer, "ln_1"), x, linear_backward(name(layer, "attn.c_attn"), b.normed_1, grad_qkv)), grad);
    return grad;
  }

  static double gelu_inner(double h) { return std::sqrt(2 / M_PI) * (h + 0.044715 * h * h * h); }
  static void add(const Values& from, Values& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
  Values dropped(int site, Values values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= element(site, static_cast<std::int64_t>(i) / c_.n_embd, static_cast<std::int64_t>(i) % c_.n_embd);
    }
    return values;
  }
  void add_dropped(int site, const Values& branch, Values& to) const { add(dropped(site, branch), to); }

  // function(row of the query, head, row of the first key, index of the weights' row)
  template <class Function>
  void for_each_query(Function&& function) const {
    const std::int64_t t = batch_->tokens;
    for (std::int64_t row = 0; row < batch_->rows(); ++row) {
      for (std::int64_t head = 0; head < c_.n_head; ++head) {
        function(row, head, row / t * t, (row * c_.n_head + head) * t);
      }
    }
  }

  void attend(std::int64_t layer, Block& b) const {
    const std::int64_t d = c_.n_embd, size = d / c_.n_head;
    b.weights.assign(batch_->rows() * c_.n_head * batch_->tokens, 0);
    b.attention.assign(batch_->rows() * d, 0);
    for_each_query([&](std::int64_t row, std::int64_t head, std::int64_t first, std::int64_t at) {
      double largest = -INFINITY, sum = 0;
      for (std::int64_t s = 0; s <= row - first; ++s) {
        double score = 0;
        for (std::int64_t k = head * size; k < (head + 1) * size; ++k) {
          score += b.qkv[row * 3 * d + k] * b.qkv[(first + s) * 3 * d + d + k] / std::sqrt(static_cast<double>(size));
        }
        b.weights[at + s] = score;
        largest = std::max(largest, score);
      }
      for (std::int64_t s = 0; s <= row - first; ++s) sum += b.weights[at + s] = std::exp(b.weights[at + s] - largest);
      for (std::int64_t s = 0; s <= row - first; ++s) {
        b.weights[at + s] /= sum;
        const double kept = b.weights[at + s] * attention_factor(1 + 3 * static_cast<int>(layer), row, head, s);
        for (std::int64_t k = head * size; k < (head + 1) * size; ++k) {
          b.attention[row * d + k] += kept * b.qkv[(first + s) * 3 * d + 2 * d + k];
        }
      }
    });
  }

  Values attend_backward(std::int64_t layer, const Block& b, const Values& grad_out) const {
    const std::int64_t d = c_.n_embd, size = d / c_.n_head;
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    Values grad(b.qkv.size(), 0.0), grad_weights(batch_->tokens);
    for_each_query([&](std::int64_t row, std::int64_t head, std::int64_t first, std::int64_t at) {
      double mean = 0;
      for (std::int64_t s = 0; s <= row - first; ++s) {
        const double factor = attention_factor(1 + 3 * static_cast<int>(layer), row, head, s);
        grad_weights[s] = 0;
        for (std::int64_t k = head * size; k < (head + 1) * size; ++k) {
          grad_weights[s] += factor * grad_out[row * d + k] * b.qkv[(first + s) * 3 * d + 2 * d + k];
          grad[(first + s) * 3 * d + 2 * d + k] += factor * b.weights[at + s] * grad_out[row * d + k];
        }
        mean += b.weights[at + s] * grad_weights[s];
      }
      for (std::int64_t s = 0; s <= row - first; ++s) {
        const double grad_score = b.weights[at + s] * (grad_weights[s] - mean) * scale;
        for (std::int64_t k = head * size; k < (head + 1) * size; ++k) {
          grad[row * 3 * d + k] += grad_score * b.qkv[(first + s) * 3 * d + d + k];
          grad[(first + s) * 3 * d + d + k] += grad_score * b.qkv[row * 3 * d + k];
        }
      }
    });
    return grad;
  }

  bool valid(std::int64_t row) const { return batch_->targets[row] != loss_.ignore_index; }
  double lse(const double* z) const {
    double largest = -INFINITY, sum = 0;
    for (std::int64_t j = 0; j < c_.vocab_size; ++j) largest = std::max(largest, z[j]);
    for (std::int64_t j = 0; j < c_.vocab_size; ++j) sum += std::exp(z[j] - largest);
    return largest + std::log(sum);
  }
  void row_losses(GptResult& result) const {
    const std::int64_t v = c_.vocab_size;
    for (std::int64_t i = 0; i < batch_->rows(); ++i) {
      if (!valid(i)) continue;
      const double* z = &result.logits[i * v];
      const double row_lse = lse(z), e = loss_.label_smoothing;
      double smooth = 0;
      for (std::int64_t j = 0; j < v; ++j) smooth += (row_lse - z[j]) / v;
      result.ce_sum += (1 - e) * (row_lse - z[batch_->targets[i]]) + e * smooth;
      result.z_sum += row_lse * row_lse;
      ++result.n_valid;
    }
  }
  Values grad_logits(const GptResult& result, double denominator) const {
    const std::int64_t v = c_.vocab_size;
    Values grad(result.logits.size(), 0.0);
    for (std::int64_t i = 0; i < batch_->rows(); ++i) {
      if (!valid(i)) continue;
      const double* z = &result.logits[i * v];
      const double row_lse = lse(z), e = loss_.label_smoothing, cap = loss_.softcap;
      for (std::int64_t j = 0; j < v; ++j) {
        const double p = std::exp(z[j] - row_lse), target = j == batch_->targets[i] ? 1 : 0;
        const double dz = (1 + 2 * loss_.z_loss_multiplier * row_lse) * p - (1 - e) * target - e / v;
        grad[i * v + j] = dz / denominator * (cap > 0 ? 1 - (z[j] / cap) * (z[j] / cap) : 1);
      }
    }
    return grad;
  }

  const GptConfig c_;
  const LossSettings loss_;
  const NamedValues& w_;
  const GptMasks masks_;
  const GptBatch* batch_ = nullptr;
  std::vector<Values> x_;  // the residual stream before each block, and after the last
  std::vector<Block> blocks_;
  Values normed_f_;
  NamedValues g_;
};

}  // namespace greyhound::reference
