#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>
#include <greyhound/models/parameters.h>

#include <cmath>
#include <cstdint>

namespace greyhound {
namespace {

constexpr std::int64_t offset_multiple = 64;

// FNV-1a: gives each name a stream of random numbers of its own, whatever else the list holds.
std::uint64_t hash(const std::string& name) {
  std::uint64_t value = 0xcbf29ce484222325ull;
  for (const char letter : name) value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
  return value;
}

// Four normal numbers from the four words at one counter: G. E. P. Box, M. E. Muller, "A note on the generation of
// random normal deviates", 1958.
std::array<float, 4> normals(const Philox& philox, std::uint64_t counter, float std) {
  const Philox::Block words = philox(counter, 0);
  std::array<float, 4> result;
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std * std::sqrt(-2 * std::log(1.0 - uniform(words[2 * pair])));  // 1 - u is never 0
    const double angle = 6.283185307179586 * uniform(words[2 * pair + 1]);
    result[2 * pair] = static_cast<float>(radius * std::cos(angle));
    result[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return result;
}

void fill_normal(const Context& context, float* values, std::int64_t count, const Philox& philox, float std) {
  const std::int64_t blocks = (count + 3) / 4;
  [[maybe_unused]] const int threads = context.threads();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::array<float, 4> drawn = normals(philox, static_cast<std::uint64_t>(block), std);
    for (std::int64_t i = 4 * block; i < count && i < 4 * block + 4; ++i) values[i] = drawn[i - 4 * block];
  }
}

// The initial values of the parameter's logical rows.
void fill(const Context& context, const Parameter& parameter, float* values, std::int64_t count, std::uint64_t seed) {
  switch (parameter.init) {
    case Init::normal:
      fill_normal(context, values, count, Philox{mix_key(seed, hash(parameter.name))}, parameter.init_std);
      return;
    case Init::zeros: std::fill_n(values, count, 0.0f); return;
    case Init::ones: std::fill_n(values, count, 1.0f); return;
  }
}

std::int64_t logical_elements(const Parameter& parameter) { return parameter.logical_rows * parameter.shape.columns(); }

}  // namespace

Parameter& ParameterList::add(const std::string& name, const Shape& shape, bool decay, Init init, float init_std) {
  require(index_.emplace(name, parameters_.size()).second, "parameters: ", name, " is there already");
  const std::int64_t elements = shape.elements();
  parameters_.push_back({name, shape, block_elements_, decay, init, init_std, shape.rows()});
  block_elements_ += (elements + offset_multiple - 1) / offset_multiple * offset_multiple;
  return parameters_.back();
}

const Parameter& ParameterList::operator[](const std::string& name) const {
  const auto found = index_.find(name);
  require(found != index_.end(), "parameters: the model has no ", name);
  return parameters_[found->second];
}

std::int64_t ParameterList::count() const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters_) sum += logical_elements(parameter);
  return sum;
}

std::vector<DecayRange> ParameterList::decay_ranges(float weight_decay) const {
  std::vector<DecayRange> ranges;
  for (const Parameter& parameter : parameters_) {
    const float decay = parameter.decay ? weight_decay : 0;
    if (ranges.empty() || ranges.back().weight_decay != decay) {
      if (!ranges.empty()) ranges.back().end = parameter.offset;
      ranges.push_back({parameter.offset, block_elements_, decay});
    }
  }
  return ranges;
}

void ParameterList::initialize(const Context& context, const Tensor& block, std::uint64_t seed) const {
  require_tensor(block, "initialize: block", DType::fp32, Shape{block_elements_});
  zero(context, block);  // gaps and padded rows
  std::vector<float> staged;
  for (const Parameter& parameter : parameters_) {
    const Tensor values = view(block, parameter);
    const std::int64_t count = logical_elements(parameter);
    if (block.device.is_cpu()) {
      fill(context, parameter, values.as<float>(), count, seed);
      continue;
    }
    staged.resize(static_cast<std::size_t>(count));
    fill(context, parameter, staged.data(), count, seed);
    copy_bytes(context, values.data, values.device, staged.data(), Device::cpu(), staged.size() * sizeof(float));
    context.synchronize();  // before `staged` is used again
  }
}

}  // namespace greyhound
