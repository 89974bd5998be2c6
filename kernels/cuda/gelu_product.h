// Products with GELU in which it costs no pass over memory of its own. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/matmul.h>

namespace greyhound::cuda {

// Whether a product with Activation::gelu is one for the kernel of gelu_product.cuh. With its device current.
bool takes_gelu_product(const Context& context, const Matmul& args);

// Makes such a product. Its bias, if any, has out's dtype and begins at 4 bytes. False, with nothing enqueued, where
// the driver does not describe the operands.
bool gelu_product(const Context& context, const Matmul& args);

}  // namespace greyhound::cuda
