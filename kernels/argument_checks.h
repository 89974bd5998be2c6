// Checks of operators' arguments, made before a backend is chosen. Internal to kernels/.
#pragma once

#include <greyhound/kernels/backend.h>

namespace greyhound {

inline void require_fp32_or_bf16(const ConstTensor& tensor, const char* name) {
  require(tensor.dtype == DType::fp32 || tensor.dtype == DType::bf16, name, ": expected fp32 or bf16, got ",
          name_of(tensor.dtype));
}

// Throws unless the tensor is given, has this dtype, and is [rows, columns] (leading dimensions taken together) where
// the context runs. Any row stride.
inline void require_matrix(const Context& context, const ConstTensor& tensor, const char* name, DType dtype,
                           std::int64_t rows, std::int64_t columns) {
  require(tensor || tensor.elements() == 0, name, ": not given");
  require(tensor.dtype == dtype, name, ": expected ", name_of(dtype), ", got ", name_of(tensor.dtype));
  if (tensor.rows() != rows || tensor.columns() != columns) {
    throw_usage(name, ": expected [", rows, ", ", columns, "], got ", to_string(tensor.shape));
  }
  require_device(context, tensor, name);
}

// Throws unless the tensor is given, has this dtype and number of elements, densely stored where the context runs.
inline void require_vector(const Context& context, const ConstTensor& tensor, const char* name, DType dtype,
                           std::int64_t elements) {
  require(tensor || tensor.elements() == 0, name, ": not given");
  require(tensor.dtype == dtype, name, ": expected ", name_of(dtype), ", got ", name_of(tensor.dtype));
  if (tensor.elements() != elements || !tensor.contiguous()) {
    throw_usage(name, ": expected ", elements, " dense elements, got ", to_string(tensor.shape), " with row stride ",
                tensor.row_stride);
  }
  require_device(context, tensor, name);
}

}  // namespace greyhound
