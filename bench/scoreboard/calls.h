// The requests of the scoreboard, answered by Greyhound's losses.
#pragma once

#include "values.h"

namespace greyhound::scoreboard {

// One request (its fields: README.md beside this file) and what came out of it:
// {"status": "ok", "loss": ..., "grad_...": [...], ...}. Throws what the library throws.
Json answer(const Context& context, const Json& request);

}  // namespace greyhound::scoreboard
