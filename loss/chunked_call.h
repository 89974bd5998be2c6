// The schedule of the chunked linear losses, around whatever turns a tile of logits into its gradient. Internal.
#pragma once

#include <greyhound/loss/chunk_schedule.h>
#include <greyhound/loss/chunked_linear_loss.h>

#include <algorithm>

namespace greyhound::loss {

// What the schedule has to know about a loss to make the gradients of its tiles.
struct TileGradients {
  Targets counted;    // rows without a valid index keep their inputs out of grad_weight; no index: every row counts
  ConstTensor alpha;  // [1] fp32: what a tile has to be multiplied with; optional
};

// One call: its arguments, what it took from the workspace (given back when it ends, by an exception too), and how far
// it is.
class ChunkedCall {
 public:
  // Throws a usage Error where the arguments do not fit together or to the plan.
  ChunkedCall(const Context& context, const Plan& plan, const ProjectionInputs& in, const LinearGradients& gradients,
              Workspace& workspace);

  std::int64_t rows() const { return in_.inputs.rows(); }
  bool wants_gradients() const { return gradients_.input || gradients_.weight || gradients_.bias; }
  // fp16 tiles with a gradient: see kernels/linear_loss.h.
  bool normalizes() const { return wants_gradients() && loss::normalizes(plan_); }
  // Arrays of the planned N, cut to this call's.
  RowResults row_results() const;
  const ChunkBuffers& buffers() const { return buffers_; }

  // For each chunk: logits; tile_loss(first_row, tile), which overwrites them with dlogits where gradients are wanted;
  // and what the chunk adds to the gradients. The first chunk overwrites, unless the caller asked to accumulate.
  template <class TileLoss>
  void run(const TileGradients& of, TileLoss&& tile_loss) {
    begin_gradients();
    for (std::int64_t first = 0; first < rows(); first += plan_.chunk_rows) {
      const Tensor tile = make_logits(first, std::min(plan_.chunk_rows, rows() - first));
      tile_loss(first, tile);
      add_gradients(of, first, tile);
    }
    finish_grad_weight();
  }

 private:
  void check() const;
  void begin_gradients();
  Tensor make_logits(std::int64_t first, std::int64_t count);
  void add_gradients(const TileGradients& of, std::int64_t first, const Tensor& tile);
  ConstTensor counted_inputs(const Targets& counted, std::int64_t first, std::int64_t count);
  void add_grad_bias(const Tensor& tile, const ConstTensor& alpha);
  void finish_grad_weight();
  void product(const Matmul& args);

  const Context& context_;
  const Plan& plan_;
  ProjectionInputs in_;
  LinearGradients gradients_;
  Workspace& workspace_;
  Workspace::Scope scope_;
  ChunkBuffers buffers_;
  ConstTensor weight_, bias_;  // the first V rows: padding never reaches a tile
  Tensor target_;              // what grad_weight's products add up in
  float weight_beta_ = 0;
};

// Rows first .. first + count of indices [N] or [N, K].
template <class Void>
BasicTensor<Void> index_range(const BasicTensor<Void>& index, std::int64_t first, std::int64_t count) {
  return index.shape.rank() == 2 ? index.row_range(first, count) : index.slice(first, Shape{count});
}

}  // namespace greyhound::loss
