// A model's weights as a safetensors file.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/models/parameters.h>
#include <greyhound/train/safetensors.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace greyhound {

// One tensor of a file for each parameter of a block [block_elements] in host memory, under prefix + its name, padded
// rows of the vocabulary left out ([V, C]).
std::vector<NamedTensor> name_parameters(const ParameterList& parameters, const ConstTensor& block,
                                         const std::string& prefix = "");

// Reads such tensors into a block [block_elements] on the context's device: fp32, or rounded to bf16. Padded rows
// become zeros. Throws a runtime Error that names the file when a tensor is missing or of another shape.
void read_parameters(const SafetensorsFile& file, const std::string& prefix, const Context& context,
                     const ParameterList& parameters, const Tensor& block);

// Of a file of weights: "greyhound_version", "step", and "format", which transformers asks for.
std::map<std::string, std::string> weights_metadata(std::int64_t step);

// Writes every parameter under its name. weights [block_elements] fp32 on the context's device. The file is replaced as
// a whole or not at all.
void save_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                  const Tensor& weights, std::int64_t step);

// Reads such a file into weights [block_elements] (fp32, or rounded to bf16). Throws a runtime Error that names the
// file when a tensor is missing, unknown or of another shape. Returns the step that the file names.
std::int64_t load_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                          const Tensor& weights);

}  // namespace greyhound
