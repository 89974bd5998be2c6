// From a configuration to a model.
#pragma once

#include <greyhound/models/gpt.h>
#include <greyhound/train/config.h>

namespace greyhound {

// config.model.vocab_size must be the real one by now, not 0. Throws a usage Error when the values do not fit.
Gpt build_model(const Config& config);

}  // namespace greyhound
