// One training step, and the state that steps carry on.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/core/graph.h>
#include <greyhound/core/state.h>
#include <greyhound/train/config.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/step_readback.h>
#include <greyhound/train/training_buffers.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace greyhound {

// What became of a step, with the same values on every rank.
struct StepResult {
  std::int64_t step = 0;    // its number, from 1
  std::int64_t tokens = 0;  // of the steps up to this one, over all ranks
  double epoch = 0;
  double seconds = 0;                  // from its beginning to its end on this rank's device
  double loss = 0;                     // mean cross-entropy over the step's targets of all ranks, without the z-loss
  std::optional<double> z_loss;        // its mean contribution, when loss.z_loss_multiplier is not 0
  std::int64_t valid_targets = 0;      // of all ranks
  std::int64_t nonfinite_targets = 0;  // of these, with a NaN or infinite loss
  double lr = 0;
  double grad_norm = 0;            // before clipping
  bool skipped = false;            // the norm was not finite: nothing was updated
  std::int64_t skipped_steps = 0;  // so far
};

class Trainer final : public Stateful {
 public:
  // Buffers are allocated; everything given must outlive the trainer. Before the first step, initialize() or a visitor
  // that restores sets the state.
  Trainer(const Context& context, Communicator& communicator, const Config& config, const BatchPlan& batch,
          TrainingBuffers& buffers, Loader& loader);

  // Draws the initial weights from run.seed, or reads model.init_from.
  void initialize();

  // Chooses the fastest algorithm for every matrix product of a step on a GPU, timing them in the work on a micro-batch
  // whose results nobody takes: bits stay the same (kernels/matmul_choices.h). Before the first step, when the weights
  // are there; on every rank. Returns how many products got one; those that have a choice keep it.
  std::int64_t tune_products();

  // Reads a step of data, computes the gradients of all micro-batches over all ranks, updates the weights; waits for
  // what became of it.
  StepResult step();

  // The two halves of step().
  void compute_gradients();
  StepResult apply_gradients();

  // The same as step() without the wait, so that a GPU has the next step's work before it is done with this one's.
  // finish_step() waits for the oldest step that was started. Every step's bits are the same either way.
  void start_step();
  StepResult finish_step();
  int pending() const { return readback_.pending(); }  // started and not finished
  // finish_step() has to come before the next start_step(): always on the CPU, where there is nothing to gain, and
  // after a skipped step, so that a third one in a row is found while its gradient is there.
  bool must_finish() const;

  // Whether a GPU gets the work on a micro-batch as a graph from its third time on (run.cuda_graphs at the start), or
  // kernel by kernel, as those who observe operators need it. The bits are the same.
  void use_graphs(bool wanted) { graphs_wanted_ = wanted; }
  std::int64_t graph_launches() const { return graph_launches_; }  // so far

  // Throws a runtime Error that names a parameter when the last three steps were skipped: the run has diverged.
  void check_progress() const;

  std::int64_t steps() const { return steps_; }                  // started so far, skipped ones among them
  std::int64_t skipped_steps() const { return skipped_steps_; }  // of those finished
  bool last_step_skipped() const { return skipped_in_a_row_ > 0; }
  std::int64_t tokens() const;  // of the steps so far, over all ranks
  double epoch() const { return loader_.epoch(); }

  // The data of a step that failed half-way is read again; its weights and moments are those before it anyway.
  void forget_unfinished_step() { loader_.go_to(steps_); }

  // Everything that a run must restore, when no step is pending. Dropout and sampling draw from counters made of
  // run.seed and the step.
  void visit_state(StateVisitor& visitor) override;

 private:
  // The work on a micro-batch in one of the batch's buffers.
  struct MicroBatchWork {
    bool has_run = false;  // what is made once for it, in libraries and drivers, is there
    Graph graph;
  };

  // Sets the dropout of the next step and its sums to zero; what its micro-batches are told.
  StepInfo begin_micro_batches();
  void enqueue_micro_batch(const Batch& batch, const StepInfo& step);
  void enqueue_update();

  const Context context_;
  Communicator& communicator_;
  const Config config_;
  const BatchPlan plan_;
  TrainingBuffers& buffers_;
  Loader& loader_;

  bool graphs_wanted_;
  std::int64_t graph_launches_ = 0;
  std::map<std::pair<const void*, bool>, MicroBatchWork> micro_batch_work_;  // by tokens and first_micro_batch

  StepReadback readback_;
  // What the host knows of the steps in readback_, in its order, and of the gradients that wait to be applied.
  std::array<StepResult, StepReadback::capacity> known_;
  std::int64_t steps_ = 0;
  std::int64_t skipped_steps_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace greyhound
