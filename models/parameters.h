// The parameters of a model as data: initialisation, optimiser, checkpoints and the memory table all read this list.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/optimizer.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace greyhound {

enum class Init { normal, zeros, ones };

struct Parameter {
  std::string name;     // Hugging Face's names of GPT-2 tensors: "h.0.attn.c_attn.weight"
  Shape shape;          // matrices are [out, in]
  std::int64_t offset;  // in elements, from the start of the contiguous block
  bool decay;           // weight decay applies (matrices)
  Init init;
  float init_std;             // of Init::normal
  std::int64_t logical_rows;  // rows that stand for something: V of a padded [Vp, C]; otherwise shape.rows()
};

// One contiguous block, in the order in which backward completes the gradients. Offsets are multiples of 64 elements;
// the gap elements are zero and stay zero.
class ParameterList {
 public:
  // The reference holds until the next call. Throws when the name is there already.
  Parameter& add(const std::string& name, const Shape& shape, bool decay, Init init, float init_std = 0);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](const std::string& name) const;  // throws when there is none
  bool contains(const std::string& name) const { return index_.count(name) > 0; }
  std::int64_t block_elements() const { return block_elements_; }  // with the gaps
  std::int64_t count() const;                                      // parameters that are trained: logical rows only

  // The tensor of `parameter` within a block (weights, gradients, moments).
  static Tensor view(const Tensor& block, const Parameter& parameter) {
    return block.slice(parameter.offset, parameter.shape);
  }

  // Weight decay over the block for the optimiser.
  std::vector<DecayRange> decay_ranges(float weight_decay) const;

  // Draws initial weights into a host or device fp32 block: a function of seed, parameter name and element alone.
  // Padded rows are zero.
  void initialize(const Context& context, const Tensor& block, std::uint64_t seed) const;

 private:
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> index_;  // in parameters_, by name
  std::int64_t block_elements_ = 0;
};

}  // namespace greyhound
