#include <greyhound/core/error.h>
#include <greyhound/train/loader.h>

#include <algorithm>
#include <utility>

namespace greyhound {
namespace {

// Splits a window of T + 1 tokens into inputs and targets. Returns the number of valid targets, or -1 when a token is
// outside the vocabulary.
std::int64_t split_window(std::span<const std::int32_t> window, std::int64_t vocab_size, std::int64_t ignore_token,
                          std::int32_t* tokens, std::int32_t* targets) {
  std::uint32_t largest = 0;  // negative ids count as large ones
  for (const std::int32_t id : window) largest = std::max(largest, static_cast<std::uint32_t>(id));
  if (static_cast<std::int64_t>(largest) >= vocab_size) return -1;
  std::int64_t valid = 0;
  for (std::size_t t = 0; t + 1 < window.size(); ++t) {
    tokens[t] = window[t];
    const bool ignored = window[t + 1] == ignore_token;
    targets[t] = ignored ? ignored_target : window[t + 1];
    valid += ignored ? 0 : 1;
  }
  return valid;
}

[[noreturn]] void throw_bad_token(std::span<const std::int32_t> window, std::int64_t vocab_size, std::int64_t index,
                                  const std::string& position) {
  throw_runtime(position, ": token id ", static_cast<std::uint32_t>(window[static_cast<std::size_t>(index)]),
                " is outside the vocabulary of ", vocab_size, " (model.vocab_size)");
}

std::int64_t first_bad_token(std::span<const std::int32_t> window, std::int64_t vocab_size) {
  const auto bad = std::find_if(window.begin(), window.end(),
                                [&](std::int32_t id) { return static_cast<std::uint32_t>(id) >= vocab_size; });
  return bad - window.begin();
}

HostBatch host_batch(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                     std::int64_t rows, std::int64_t block_size) {
  HostBatch batch;
  batch.tokens = tensor(static_cast<const void*>(tokens.data()), DType::int32, {rows, block_size});
  batch.targets = tensor(static_cast<const void*>(targets.data()), DType::int32, {rows, block_size});
  batch.rows = rows;
  return batch;
}

}  // namespace

HostBatch HostBatch::slice(std::int64_t first, std::int64_t count) const {
  HostBatch part;
  part.tokens = tokens.row_range(first, count);
  part.targets = targets.row_range(first, count);
  part.rows = count;
  part.first_row = first_row + static_cast<std::uint64_t>(first);
  const std::int32_t* ids = part.targets.as<std::int32_t>();
  part.valid_targets = std::count_if(ids, ids + part.targets.elements(), [](std::int32_t id) { return id >= 0; });
  return part;
}

Loader::Loader(std::shared_ptr<const DataSource> source, const BatchPlan& plan, std::int64_t rank,
               std::int64_t vocab_size, std::int64_t ignore_token, bool overfit_batch)
    : source_(std::move(source)),
      plan_(plan),
      rank_(rank),
      vocab_size_(vocab_size),
      ignore_token_(ignore_token),
      overfit_batch_(overfit_batch),
      window_(static_cast<std::size_t>(plan.block_size + 1)) {
  require(rank >= 0 && rank < plan.ranks, "loader: rank ", rank, " of ", plan.ranks);
}

HostBatch Loader::next() {
  const std::int64_t step = overfit_batch_ ? 0 : step_;
  source_->check();
  tokens_.resize(static_cast<std::size_t>(plan_.rows_per_rank() * plan_.block_size));
  targets_.resize(tokens_.size());
  HostBatch batch = host_batch(tokens_, targets_, plan_.rows_per_rank(), plan_.block_size);
  const std::int64_t first_row = rank_ * batch.rows;
  batch.first_row = static_cast<std::uint64_t>(first_row);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    source_->training_row(step, first_row + row, window_);
    const std::int64_t start = row * plan_.block_size;
    const std::int64_t valid =
        split_window(window_, vocab_size_, ignore_token_, tokens_.data() + start, targets_.data() + start);
    if (valid < 0) {
      const std::int64_t index = first_bad_token(window_, vocab_size_);
      throw_bad_token(window_, vocab_size_, index, source_->training_position(step, first_row + row, index));
    }
    const std::span<std::int32_t> row_targets(targets_.data() + start, static_cast<std::size_t>(plan_.block_size));
    batch.valid_targets += valid - source_->mask_training_row(step, first_row + row, row_targets);
  }
  source_->release();
  ++step_;
  return batch;
}

double Loader::epoch() const { return source_->epochs(step_); }

void Loader::visit_state(StateVisitor& visitor) { visitor.integer("loader.step", step_); }

std::int64_t host_batch_bytes(std::int64_t rows_per_rank, std::int64_t micro_batch, std::int64_t block_size) {
  constexpr auto bytes_per_token = static_cast<std::int64_t>(2 * sizeof(std::int32_t));  // and target
  return (rows_per_rank + micro_batch) * block_size * bytes_per_token;
}

Evaluator::Evaluator(std::shared_ptr<const DataSource> source, std::int64_t batches, std::int64_t rows_per_batch,
                     std::int64_t micro_batch, std::int64_t block_size, std::int64_t rank, std::int64_t ranks,
                     std::int64_t vocab_size, std::int64_t ignore_token)
    : source_(std::move(source)),
      micro_batch_(micro_batch),
      block_size_(block_size),
      vocab_size_(vocab_size),
      ignore_token_(ignore_token),
      window_(static_cast<std::size_t>(block_size + 1)) {
  const std::int64_t available = source_->sequential_rows();
  rows_ = batches == 0 ? available : std::min(available, batches * rows_per_batch);
  begin_ = rank * rows_ / ranks;
  end_ = (rank + 1) * rows_ / ranks;
}

HostBatch Evaluator::batch(std::int64_t index) {
  require(index >= 0 && index < size(), "evaluation: batch ", index, " of ", size());
  const std::int64_t first = begin_ + index * micro_batch_;
  source_->check();
  tokens_.resize(static_cast<std::size_t>(micro_batch_ * block_size_));
  targets_.resize(tokens_.size());
  HostBatch batch = host_batch(tokens_, targets_, std::min(micro_batch_, end_ - first), block_size_);
  batch.first_row = static_cast<std::uint64_t>(first);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    // Evenly spread: a product of two row numbers stays far below 2^63.
    const std::int64_t source_row = (first + row) * source_->sequential_rows() / rows_;
    source_->sequential_row(source_row, window_);
    const std::int64_t start = row * block_size_;
    const std::int64_t valid =
        split_window(window_, vocab_size_, ignore_token_, tokens_.data() + start, targets_.data() + start);
    if (valid < 0) {
      const std::int64_t bad = first_bad_token(window_, vocab_size_);
      throw_bad_token(window_, vocab_size_, bad, source_->sequential_position(source_row, bad));
    }
    const std::span<std::int32_t> row_targets(targets_.data() + start, static_cast<std::size_t>(block_size_));
    batch.valid_targets += valid - source_->mask_sequential_row(source_row, row_targets);
  }
  source_->release();
  return batch;
}

}  // namespace greyhound
