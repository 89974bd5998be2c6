#include <greyhound/loss/tune.h>

#include <greyhound/core/arena.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/loss/chunk_schedule.h>

#include <algorithm>
#include <vector>

namespace greyhound::loss {

namespace {

// What the products of a chunk read and write.
struct Operands {
  ChunkBuffers chunk;
  Tensor inputs, weight, grad_input, grad_weight, bias;

  // `take(dtype, shape)` is Workspace::take, or whatever adds up sizes.
  template <class Take>
  static Operands make(const Plan& plan, bool with_bias, Take&& take) {
    const LinearShape& shape = plan.shape;
    const Shape rows{plan.chunk_rows, shape.hidden}, weight{shape.vocab, shape.hidden};
    Operands made;
    made.chunk = ChunkBuffers::make(plan, take);
    made.inputs = plan.options.grad_weight ? made.chunk.valid_inputs : take(shape.dtype, rows);
    made.weight = take(shape.dtype, weight);
    if (plan.options.grad_input) made.grad_input = take(shape.dtype, rows);
    if (plan.options.grad_weight) {
      made.grad_weight = needs_accumulator(plan.options, plan.chunks) ? made.chunk.accumulator
                                                                      : take(plan.options.grad_weight_dtype, weight);
    }
    if (with_bias) made.bias = take(DType::fp32, Shape{shape.vocab});
    return made;
  }
};

std::size_t scratch_bytes(const Plan& plan, bool with_bias) {
  std::size_t operands = 0, chunk = 0;
  Operands::make(plan, with_bias, [&](DType dtype, const Shape& shape) {
    operands += Workspace::size(dtype, shape);
    return Tensor(nullptr, dtype, shape);
  });
  ChunkBuffers::make(plan, [&](DType dtype, const Shape& shape) {
    chunk += Workspace::size(dtype, shape);
    return Tensor(nullptr, dtype, shape);
  });
  return plan.workspace_bytes - chunk + operands;  // the plan's rest is the products' own workspace
}

// Uniform in [-1, 1). A block of random values, doubled until it fills the tensor: toggling bits are what costs power,
// not that they are new.
void fill_random(const Context& context, const Tensor& tensor) {
  if (!tensor) return;
  const std::int64_t elements = tensor.rows() * std::max(tensor.row_stride, tensor.columns());
  const std::int64_t block = std::min<std::int64_t>(elements, std::int64_t{1} << 20);
  const std::size_t size = size_of(tensor.dtype);
  std::vector<char> host(static_cast<std::size_t>(block) * size);
  dispatch(tensor.dtype, "tune", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Philox philox{mix_key(1, 1)};
    for (std::int64_t i = 0; i < block; ++i) {
      const T value = from_float<T>(2 * uniform(philox(static_cast<std::uint64_t>(i), 0)[0]) - 1);
      std::memcpy(host.data() + static_cast<std::size_t>(i) * size, &value, size);
    }
  });
  char* data = static_cast<char*>(tensor.data);
  const Device device = context.device();
  copy_bytes(context, data, device, host.data(), Device::cpu(), host.size());
  for (std::int64_t filled = block; filled < elements; filled *= 2) {
    const std::int64_t more = std::min(filled, elements - filled);
    copy_bytes(context, data + static_cast<std::size_t>(filled) * size, device, data, device,
               static_cast<std::size_t>(more) * size);
  }
  context.synchronize();  // the host's block is read until here
}

void tune_product(const Context& context, const Matmul& product, Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  tune_matmul(context, product, workspace);
}

// The products of a chunk of `rows` rows. The logits come last: they write over the tile that the others read.
void tune_chunk(const Context& context, const Plan& plan, const Operands& operands, std::int64_t rows,
                Workspace& workspace) {
  const Tensor tile = operands.chunk.tile.row_range(0, rows), inputs = operands.inputs.row_range(0, rows);
  const auto tune_gradients = [&](const ConstTensor& alpha) {
    if (plan.options.grad_input) {
      const Tensor grad_input = operands.grad_input.row_range(0, rows);
      tune_product(context, grad_input_product(tile, operands.weight, grad_input, alpha, 0), workspace);
    }
    if (plan.options.grad_weight) {
      tune_product(context, grad_weight_product(tile, inputs, operands.grad_weight, alpha, 1), workspace);
    }
  };
  tune_gradients({});
  if (normalizes(plan)) tune_gradients(operands.chunk.alpha);  // a loss of the caller's own takes the others
  tune_product(context, logits_product(inputs, operands.weight, operands.bias, tile), workspace);
}

}  // namespace

void tune(const Context& context, const Plan& plan, bool with_bias) {
  if (context.device().is_cpu() || plan.shape.tokens == 0) return;
  ArenaPlan memory;
  const ArenaPlan::Slot slot =
      memory.add("tuning", "scratch", DType::uint8, {static_cast<std::int64_t>(scratch_bytes(plan, with_bias))});
  const Arena arena(context, memory);
  Workspace workspace(arena[slot]);
  const Operands operands =
      Operands::make(plan, with_bias, [&](DType dtype, const Shape& shape) { return workspace.take(dtype, shape); });
  for (const Tensor& tensor : {operands.chunk.tile, operands.inputs, operands.weight, operands.grad_weight,
                               operands.bias, operands.chunk.alpha}) {
    fill_random(context, tensor);
  }
  tune_chunk(context, plan, operands, plan.chunk_rows, workspace);
  const std::int64_t last = plan.shape.tokens % plan.chunk_rows;
  if (last != 0) tune_chunk(context, plan, operands, last, workspace);
  context.synchronize();
}

}  // namespace greyhound::loss
