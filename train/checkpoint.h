// A model's weights as a safetensors file.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/models/parameters.h>

#include <cstdint>
#include <string>

namespace greyhound {

// Writes every parameter in fp32 under its name, padded rows of the vocabulary left out ([V, C]), with the metadata
// "greyhound_version" and "step". weights [block_elements] fp32. The file is replaced as a whole or not at all.
void save_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                  const Tensor& weights, std::int64_t step);

// Reads such a file into weights [block_elements] (fp32, or rounded to bf16). Throws a runtime Error that names the
// file when a tensor is missing, unknown or of another shape. Returns the step that the file names.
std::int64_t load_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                          const Tensor& weights);

}  // namespace greyhound
