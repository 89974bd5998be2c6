// The algorithms that were timed for matrix products, kept in a file from run to run.
#pragma once

#include <greyhound/core/context.h>

#include <string>

namespace greyhound {

// matmul_choices.txt in the cache folder: lines as save_matmul_choices makes them, of any devices and libraries.
std::string tuned_products_path();

// Adds those that apply to the context's choices. A file that is missing has none; of one that cannot be used, a
// warning says why.
void load_tuned_products(const Context& context);

// Adds the context's choices to the file. Where that cannot be done, a warning says why.
void save_tuned_products(const Context& context);

}  // namespace greyhound
