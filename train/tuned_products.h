// The algorithms that were timed for matrix products, kept in a file from run to run.
#pragma once

#include <greyhound/core/context.h>

#include <string>

namespace greyhound {

// matmul_choices.txt in the cache folder: lines as save_matmul_choices makes them, of any devices and versions of the
// library. Throws a runtime Error where there is no such folder.
std::string tuned_products_path();

// Adds the choices that apply to the context's. Where there is no file there are none; of a file or a folder that
// cannot be used a warning says why.
void load_tuned_products(const Context& context);

// Adds the context's choices to the file, which keeps what it has. Where that cannot be done, a warning says why, and
// the file stays as it is.
void save_tuned_products(const Context& context);

}  // namespace greyhound
