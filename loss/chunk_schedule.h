// The pieces that plan and call of the chunked linear losses share: what a chunk takes from the workspace, and its
// three products. Internal.
#pragma once

#include <greyhound/kernels/matmul.h>
#include <greyhound/loss/plan.h>
#include <greyhound/loss/row_arguments.h>

namespace greyhound::loss {

// bf16 and fp16 buffers of grad_weight are summed up in fp32 elsewhere, unless one product makes the whole sum.
inline bool needs_accumulator(const PlanOptions& options, std::int64_t chunks) {
  return options.grad_weight && options.grad_weight_dtype != DType::fp32 &&
         options.grad_weight_accum_dtype == AccumDType::fp32 && chunks > 1;
}

// A fp16 tile holds normalised gradients: see kernels/linear_loss.h.
inline bool normalizes(const Plan& plan) {
  return plan.shape.dtype == DType::fp16 && (plan.options.grad_input || plan.options.grad_weight);
}

struct ChunkBuffers {
  RowResults rows;
  Tensor tile;          // [chunk_rows, V]; rows begin at 128 bytes, a line of a GPU's caches
  Tensor valid_inputs;  // [chunk_rows, D]: inputs with zeros in rows that do not count; with grad_weight
  Tensor accumulator;   // [V, D] fp32; see needs_accumulator
  Tensor row_upstream;  // [N] fp32; see normalizes
  Tensor alpha;         // [1] fp32; likewise

  // `take(dtype, shape)` is Workspace::take, or whatever adds up sizes.
  template <class Take>
  static ChunkBuffers make(const Plan& plan, Take&& take) {
    const LinearShape& shape = plan.shape;
    const std::int64_t granule = 128 / static_cast<std::int64_t>(size_of(shape.dtype));
    const std::int64_t stride = (shape.vocab + granule - 1) / granule * granule;
    ChunkBuffers buffers;
    buffers.rows = RowResults::make(shape.tokens, take);
    const Tensor tile = take(shape.dtype, Shape{plan.chunk_rows, stride});
    buffers.tile = Tensor(tile.data, shape.dtype, Shape{plan.chunk_rows, shape.vocab}, stride, tile.device);
    if (plan.options.grad_weight) buffers.valid_inputs = take(shape.dtype, Shape{plan.chunk_rows, shape.hidden});
    if (needs_accumulator(plan.options, plan.chunks)) {
      buffers.accumulator = take(DType::fp32, Shape{shape.vocab, shape.hidden});
    }
    if (normalizes(plan)) {
      buffers.row_upstream = take(DType::fp32, Shape{shape.tokens});
      buffers.alpha = take(DType::fp32, Shape{1});
    }
    return buffers;
  }
};

// tile [rows, V] = inputs [rows, D] x weight [V, D]^T + bias.
inline Matmul logits_product(const ConstTensor& inputs, const ConstTensor& weight, const ConstTensor& bias,
                             const Tensor& tile) {
  Matmul product;
  product.a = inputs;
  product.b = weight;
  product.transpose_b = true;
  product.bias = bias;
  product.out = tile;
  return product;
}

// grad_input [rows, D] = alpha * dlogits [rows, V] x weight [V, D] + beta * grad_input.
inline Matmul grad_input_product(const ConstTensor& dlogits, const ConstTensor& weight, const Tensor& grad_input,
                                 const ConstTensor& alpha, float beta) {
  Matmul product;
  product.a = dlogits;
  product.b = weight;
  product.out = grad_input;
  product.alpha_factor = alpha;
  product.beta = beta;
  return product;
}

// grad_weight [V, D] = alpha * dlogits [rows, V]^T x inputs [rows, D] + beta * grad_weight.
inline Matmul grad_weight_product(const ConstTensor& dlogits, const ConstTensor& inputs, const Tensor& grad_weight,
                                  const ConstTensor& alpha, float beta) {
  Matmul product;
  product.a = dlogits;
  product.transpose_a = true;
  product.b = inputs;
  product.out = grad_weight;
  product.alpha_factor = alpha;
  product.beta = beta;
  return product;
}

}  // namespace greyhound::loss
