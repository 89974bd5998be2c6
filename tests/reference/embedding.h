// fp64 reference of kernels/embedding.h.
#pragma once

#include <cstdint>
#include <vector>

namespace greyhound::reference {

struct EmbeddingShape {
  std::int64_t batch, tokens, channels, vocab, padded_vocab, positions;
};

inline bool token_is_valid(const EmbeddingShape& shape, std::int32_t token) {
  return token >= 0 && token < shape.vocab;
}

// `position_weight` may be empty.
inline std::vector<double> embedding_forward(const EmbeddingShape& shape, const std::vector<std::int32_t>& tokens,
                                             const std::vector<double>& token_weight,
                                             const std::vector<double>& position_weight, std::int64_t first_position) {
  std::vector<double> out;
  for (std::int64_t row = 0; row < shape.batch * shape.tokens; ++row) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      double value = token_is_valid(shape, tokens[row]) ? token_weight[tokens[row] * shape.channels + c] : 0.0;
      if (!position_weight.empty()) {
        value += position_weight[(first_position + row % shape.tokens) * shape.channels + c];
      }
      out.push_back(value);
    }
  }
  return out;
}

// Adds to grad_token [padded_vocab, C] and grad_position [positions, C].
inline void embedding_backward(const EmbeddingShape& shape, const std::vector<std::int32_t>& tokens,
                               const std::vector<double>& grad_out, std::vector<double>* grad_token,
                               std::vector<double>* grad_position) {
  for (std::int64_t row = 0; row < shape.batch * shape.tokens; ++row) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      const double grad = grad_out[row * shape.channels + c];
      if (token_is_valid(shape, tokens[row])) (*grad_token)[tokens[row] * shape.channels + c] += grad;
      (*grad_position)[row % shape.tokens * shape.channels + c] += grad;
    }
  }
}

}  // namespace greyhound::reference
