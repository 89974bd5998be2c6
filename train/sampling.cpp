#include <greyhound/train/sampling.h>

#include <greyhound/core/error.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace greyhound {

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  std::vector<std::int32_t> candidates;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    if (std::isfinite(logits[token])) candidates.push_back(static_cast<std::int32_t>(token));
  }
  if (candidates.empty()) throw_runtime("sampling: none of the model's ", logits.size(), " logits is finite");

  const auto larger = [&](std::int32_t a, std::int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const std::int32_t best = *std::min_element(candidates.begin(), candidates.end(), larger);
  if (options.temperature <= 0) return best;
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k, candidates.end(), larger);
    candidates.resize(static_cast<std::size_t>(options.top_k));
    std::sort(candidates.begin(), candidates.end());  // nth_element's order is the library's own business
  }

  std::vector<double> cumulative;
  cumulative.reserve(candidates.size());
  double sum = 0;
  for (const std::int32_t token : candidates) {
    sum += std::exp((static_cast<double>(logits[token]) - logits[best]) / options.temperature);
    cumulative.push_back(sum);
  }
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  const auto index = std::min<std::ptrdiff_t>(found - cumulative.begin(), std::ssize(candidates) - 1);
  return candidates[static_cast<std::size_t>(index)];
}

}  // namespace greyhound
