// Class indices beside a matrix, of any leading dimensions, as the kernels take them. Internal.
#pragma once

#include <greyhound/loss/row_arguments.h>
#include <greyhound/loss/selective_log_softmax.h>

namespace greyhound::loss {

// index [...] or [..., K] beside a matrix [..., C] of N rows.
class ClassIndex {
 public:
  // Throws a usage Error unless the leading dimensions are the matrix's. `matrix` names it in the message.
  ClassIndex(const ConstTensor& index, const Shape& beside, const char* matrix);

  // The indices as [N] or [N, K].
  const ConstTensor& flat() const { return flat_; }

  // What has the index's shape, flattened likewise; throws when it has another.
  template <class Void>
  BasicTensor<Void> flatten(const BasicTensor<Void>& values, const char* name) const {
    require(values.shape == shape_, name, ": expected index's shape ", to_string(shape_), ", got ",
            to_string(values.shape));
    if (several_) return as_matrix(values);
    require(values.contiguous(), name, ": expected dense values, got row stride ", values.row_stride);
    return BasicTensor<Void>(values.data, values.dtype, Shape{values.elements()}, values.device);
  }
  // One value per row as [N]; not given stays so.
  template <class Void>
  BasicTensor<Void> flatten_rows(const BasicTensor<Void>& values, const char* name) const {
    if (!values) return values;
    require(values.elements() == flat_.shape[0] && values.contiguous(), name, ": expected ", flat_.shape[0],
            " dense values, got ", to_string(values.shape));
    return BasicTensor<Void>(values.data, values.dtype, Shape{values.elements()}, values.device);
  }

 private:
  Shape shape_;
  bool several_;
  ConstTensor flat_;
};

// The options as arguments of the forward's and the backward's kernel.
template <class Args>
void set_options(Args& args, const SelectiveLogSoftmaxOptions& options, std::int64_t vocab) {
  args.vocab = vocab;
  args.ignore_index = options.ignore_index;
  args.softcap = options.softcap;
  args.logit_scale = options.logit_scale;
}

}  // namespace greyhound::loss
