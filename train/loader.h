// Opens the data of a run and yields it in whole steps.
#pragma once

#include <greyhound/core/state.h>
#include <greyhound/core/tensor.h>
#include <greyhound/train/batch_plan.h>
#include <greyhound/train/config.h>
#include <greyhound/train/data_source.h>
#include <greyhound/train/tokenizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace greyhound {

// One rank's rows of a step (or of an evaluation batch), in host memory that lasts until the next call.
struct HostBatch {
  ConstTensor tokens;   // [rows, T] int32, each in [0, V)
  ConstTensor targets;  // [rows, T] int32, in [0, V) or ignored_target
  std::int64_t rows = 0;
  std::int64_t valid_targets = 0;  // targets of these rows that are not ignored
  std::uint64_t first_row = 0;     // of the whole step over all ranks; see Batch in models/gpt.h

  // Rows [first, first + count) as a batch of their own; valid_targets is counted anew.
  HostBatch slice(std::int64_t first, std::int64_t count) const;
};

// Training data of one rank: all rows_per_rank() rows of a step at once, so that the number of valid targets is known
// before the first micro-batch. What a step holds depends on seed and step alone: the ranks' rows one after the other
// are the rows of the one-rank run.
class Loader final : public Stateful {
 public:
  Loader(std::shared_ptr<const DataSource> source, const BatchPlan& plan, std::int64_t rank, std::int64_t vocab_size,
         std::int64_t ignore_token = -1, bool overfit_batch = false);

  // Throws a runtime Error with file, position and id when a token is outside the vocabulary.
  HostBatch next();

  std::int64_t step() const { return step_; }        // steps yielded so far
  void go_to(std::int64_t step) { step_ = step; }    // yields that one next
  double epoch() const;                              // passes over the data so far, such as 3.5; 0 for synthetic data
  void visit_state(StateVisitor& visitor) override;  // "loader.step"

 private:
  std::shared_ptr<const DataSource> source_;
  BatchPlan plan_;
  std::int64_t rank_, vocab_size_, ignore_token_;
  bool overfit_batch_;
  std::int64_t step_ = 0;
  std::vector<std::int32_t> window_, tokens_, targets_;  // the last two are allocated by the first next()
};

// Bytes of host memory that a rank's rows of a step (Loader) and an evaluation batch (Evaluator) take.
std::int64_t host_batch_bytes(std::int64_t rows_per_rank, std::int64_t micro_batch, std::int64_t block_size);

// The held-out split: the same rows at every evaluation, whatever the number of ranks.
class Evaluator {
 public:
  // `batches` of `rows_per_batch` rows over all ranks (0: the whole split), spread evenly over the split. A rank's rows
  // come in batches of up to `micro_batch` rows.
  Evaluator(std::shared_ptr<const DataSource> source, std::int64_t batches, std::int64_t rows_per_batch,
            std::int64_t micro_batch, std::int64_t block_size, std::int64_t rank, std::int64_t ranks,
            std::int64_t vocab_size, std::int64_t ignore_token = -1);

  // Batches of this rank, which may be fewer on some ranks than on others.
  std::int64_t size() const { return (end_ - begin_ + micro_batch_ - 1) / micro_batch_; }
  HostBatch batch(std::int64_t index);               // first_row counts the evaluation's rows over all ranks
  std::int64_t total_rows() const { return rows_; }  // over all ranks

 private:
  std::shared_ptr<const DataSource> source_;
  std::int64_t micro_batch_, block_size_, vocab_size_, ignore_token_;
  std::int64_t rows_ = 0, begin_ = 0, end_ = 0;
  std::vector<std::int32_t> window_, tokens_, targets_;  // the last two are allocated by the first batch()
};

// All data of a run.
struct RunData {
  std::unique_ptr<Loader> train;
  std::unique_ptr<Evaluator> validation;  // nullptr when no split was given or could be held out
  Tokenizer tokenizer;
  std::int64_t vocab_size = 0;        // model.vocab_size, or the data's when that is 0
  std::vector<std::string> warnings;  // one line each, for the log of rank 0
  std::string description;            // "data/austen.txt: text, 3,622,527 training tokens, 402,502 held out"
};

// Opens data.train and data.val for rank `rank` of plan.ranks. `tokenizer` is the one stored in the run's folder, when
// an existing run is evaluated; otherwise it is made from the data. Throws an Error of one line when data is missing
// (naming the command that makes it, where there is one), malformed, too short, or does not fit model.vocab_size.
RunData open_data(const Config& config, const BatchPlan& plan, std::int64_t rank, const Tokenizer* tokenizer = nullptr);

// All of `data`, a path or a glob of text or token shards, to be evaluated by one rank with the tokenizer of a run.
// `validation` of what it returns is set, `train` is not.
RunData open_evaluation(const Config& config, const BatchPlan& plan, const std::string& data,
                        const Tokenizer& tokenizer);

}  // namespace greyhound
