// Plans of the chunked linear losses: how many rows a chunk has, and exactly how much workspace a call takes.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>

#include <cstddef>
#include <cstdint>

namespace greyhound::loss {

struct LinearShape {
  std::int64_t tokens = 0;        // N: rows of inputs
  std::int64_t hidden = 0;        // D
  std::int64_t vocab = 0;         // V
  DType dtype = DType::fp32;      // of inputs, weight and the logits tile
  std::int64_t padded_vocab = 0;  // P >= V: rows of the stored weight; 0: V
};

enum class AccumDType {
  fp32,    // grad_weight is summed in fp32 and rounded once, whatever the buffer's dtype
  weight,  // grad_weight is accumulated in the buffer's dtype, rounded once per chunk
};

struct PlanOptions {
  // At most one of the two. 0 and 0: the default plan, chunks of about 2048 rows on CUDA and 256 on the
  // CPU (fewer when N is small).
  std::size_t max_workspace_bytes = 0;
  std::int64_t chunk_rows = 0;

  // What calls with this plan may ask for. A gradient that is not asked for costs nothing.
  bool grad_input = true;
  bool grad_weight = true;  // and grad_bias
  DType grad_weight_dtype = DType::fp32;
  AccumDType grad_weight_accum_dtype = AccumDType::fp32;
};

struct Plan {
  LinearShape shape;
  PlanOptions options;
  std::int64_t chunk_rows = 0;
  std::int64_t chunks = 0;
  std::size_t workspace_bytes = 0;  // exact; the products' own workspace included
  std::size_t workspace_alignment = 0;
};

// Depends on the shape, the options, the device's properties and the context's number of threads alone, never on how
// much memory is free. Throws a usage Error when a budget is smaller than one row needs, naming the smallest that
// works. Calls with fewer tokens than planned may use the same plan and workspace.
GREYHOUND_API Plan plan_chunked_linear_loss(const Context& context, const LinearShape& shape,
                                            const PlanOptions& options = {});

}  // namespace greyhound::loss
