#include <greyhound/loss/class_index.h>

namespace greyhound::loss {

namespace {

// Whether `shape` is the matrix's without its last dimension, or with K in place of it.
bool is_index_shape(const Shape& shape, const Shape& matrix) {
  if (shape.rank() != matrix.rank() && shape.rank() != matrix.rank() - 1) return false;
  for (int axis = 0; axis + 1 < matrix.rank(); ++axis) {
    if (shape[axis] != matrix[axis]) return false;
  }
  return true;
}

}  // namespace

ClassIndex::ClassIndex(const ConstTensor& index, const Shape& beside, const char* matrix)
    : shape_(index.shape), several_(index.shape.rank() == beside.rank()) {
  require(beside.rank() >= 1, matrix, ": expected at least one dimension, got a scalar");
  require(is_index_shape(index.shape, beside), "index: expected the shape of ", matrix, " ", to_string(beside),
          " without its last dimension, or with K in place of it, got ", to_string(index.shape));
  flat_ = flatten(index, "index");
}

}  // namespace greyhound::loss
