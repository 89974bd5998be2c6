#include <greyhound/loss/scale_gradients.h>

#include <greyhound/kernels/scale.h>

namespace greyhound::loss {

void scale_gradients(const Context& context, const ConstTensor& scalar, std::initializer_list<Tensor> gradients) {
  for (const Tensor& gradient : gradients) {
    if (gradient) scale(context, {gradient, scalar});
  }
}

}  // namespace greyhound::loss
