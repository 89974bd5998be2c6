// Everything that AdamW reads and writes, as one block per kind over all parameters: one launch updates the model.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/core/state.h>
#include <greyhound/core/workspace.h>
#include <greyhound/models/parameters.h>
#include <greyhound/train/config.h>

#include <string>
#include <vector>

namespace greyhound {

class OptimizerState final : public Stateful {
 public:
  // precision: of the weights that the model computes with. bf16 keeps fp32 master weights beside them.
  OptimizerState(const ParameterList& parameters, DType precision, const Config::Optimizer& settings);

  // Adds the regions "parameters", "working weights" (bf16 only), "gradients" and "optimiser".
  void plan(const Context& context, ArenaPlan& plan);
  void bind(const Arena& arena);

  Tensor weights() const { return weights_; }      // [block_elements] fp32: what is trained and saved
  Tensor gradients() const { return gradients_; }  // [block_elements] fp32
  Tensor working_weights() const { return working_weights_ ? working_weights_ : weights_; }  // in `precision`

  // Makes the bf16 copy after weights() were written by someone else.
  void refresh_working_weights(const Context& context) const;

  // Clips and applies the gradients; norm() becomes their global norm before clipping. A norm that is not finite leaves
  // weights, moments and Adam's t as they were. The host learns of neither here.
  void update(const Context& context, double lr);
  ConstTensor norm() const { return norm_; }  // [1] fp32

  std::int64_t updates(const Context& context) const;  // Adam's t

  // The name of the first parameter, in the order in which backward completes them, with a gradient that is not finite;
  // empty when all are.
  std::string nonfinite_gradient(const Context& context) const;

  void visit_state(StateVisitor& visitor) override;  // "optimizer.weights", ".m", ".v", ".steps_taken"

 private:
  ParameterList parameters_;
  DType precision_;
  Config::Optimizer settings_;
  std::vector<DecayRange> decay_ranges_;

  struct Slots {
    ArenaPlan::Slot weights, working_weights, gradients, m, v, norm, steps_taken, workspace;
  } slots_{};
  Tensor weights_, working_weights_, gradients_, m_, v_, norm_, steps_taken_;
  Workspace workspace_;
};

}  // namespace greyhound
