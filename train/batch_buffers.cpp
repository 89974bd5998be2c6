#include <greyhound/train/batch_buffers.h>

#include <greyhound/core/memory.h>

#include <cstddef>
#include <cstring>

namespace greyhound {

namespace {

constexpr std::int64_t origin_words = sizeof(DropoutOrigin) / sizeof(std::int64_t);

}  // namespace

BatchBuffers::Ahead::Ahead(const Context& context, std::size_t bytes)
    : stream(context),
      host{HostBuffer(context, bytes), HostBuffer(context, bytes)},
      copied{Event(context), Event(context)},
      used{Event(context), Event(context)} {
  for (Event& event : used) event.record(context);  // behind whatever has been enqueued on the buffers
}

void BatchBuffers::plan(const Context& context, ArenaPlan& plan, std::int64_t rows, std::int64_t block_size) {
  slot_count_ = context.device().is_cuda() ? slots : 1;
  for (int slot = 0; slot < slot_count_; ++slot) {
    const std::string suffix = slot == 0 ? "" : "_2";
    slots_.tokens[slot] = plan.add("batch", "tokens" + suffix, DType::int32, {rows, block_size});
    slots_.targets[slot] = plan.add("batch", "targets" + suffix, DType::int32, {rows, block_size});
    slots_.denominator[slot] = plan.add("batch", "denominator" + suffix, DType::fp32, {1});
    slots_.dropout[slot] = plan.add("batch", "dropout_origin" + suffix, DType::int64, {origin_words});
  }
  slots_.count = plan.add("batch", "valid_targets", DType::int64, {1});
  slots_.sums = plan.add("batch", "loss_sums", DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)});
}

void BatchBuffers::bind(const Context& context, const Arena& arena) {
  for (int slot = 0; slot < slot_count_; ++slot) {
    micro_batches_[slot] = {arena[slots_.tokens[slot]], arena[slots_.targets[slot]], arena[slots_.denominator[slot]],
                            arena[slots_.dropout[slot]]};
  }
  count_ = arena[slots_.count];
  sums_.emplace(context, arena[slots_.sums].data);
  if (context.device().is_cuda()) {
    ahead_ = std::make_unique<Ahead>(
        context, slot().tokens.bytes() + slot().targets.bytes() + slot().dropout.bytes() + sizeof denominator_);
  }
}

void BatchBuffers::set_dropout(std::uint64_t seed, std::uint64_t step) {
  seed_ = seed;
  step_ = step;
}

Batch BatchBuffers::load(const Context& context, const HostBatch& batch) {
  // The work on the last micro-batch has been enqueued by now.
  if (ahead_) ahead_->used[current_].record(context);
  current_ = (current_ + 1) % slot_count_;
  const Tensor tokens = slot().tokens.row_range(0, batch.rows), targets = slot().targets.row_range(0, batch.rows);
  const DropoutOrigin origin = dropout_origin(seed_, step_, batch.first_row, tokens.columns());
  auto* const drawn_from = static_cast<DropoutOrigin*>(slot().dropout.data);
  if (ahead_) {
    copy_ahead(context, batch, tokens, targets, origin);
  } else {
    copy(context, tokens, batch.tokens);
    copy(context, targets, batch.targets);
    *slot().denominator.as<float>() = denominator_;
    *drawn_from = origin;
  }
  return {tokens, targets, batch.first_row, drawn_from};
}

void BatchBuffers::copy_ahead(const Context& context, const HostBatch& batch, const Tensor& tokens,
                              const Tensor& targets, const DropoutOrigin& origin) {
  const Context& copies = ahead_->stream.context();
  ahead_->copied[current_].wait();              // the page-locked memory is read no more
  ahead_->used[current_].order_before(copies);  // nor is the device's
  char* host = static_cast<char*>(ahead_->host[current_].data());
  const auto send = [&](const Tensor& to, const void* from) {
    std::memcpy(host, from, to.bytes());
    copy_bytes(copies, to.data, to.device, host, Device::cpu(), to.bytes());
    host += to.bytes();
  };
  send(tokens, batch.tokens.data);
  send(targets, batch.targets.data);
  send(slot().denominator, &denominator_);
  send(slot().dropout, &origin);
  ahead_->copied[current_].record(copies);
  ahead_->copied[current_].order_before(context);
}

std::int64_t BatchBuffers::set_denominator(const Context& context, Communicator& communicator,
                                           std::int64_t valid_targets) {
  std::int64_t total = valid_targets;
  if (communicator.size() > 1) {
    // Counted as integers: fp32 sums of counts stop being exact at 2^24.
    copy_bytes(context, count_.data, count_.device, &valid_targets, Device::cpu(), sizeof valid_targets);
    communicator.all_reduce(context, count_);
    copy_bytes(context, &total, Device::cpu(), count_.data, count_.device, sizeof total);
    context.synchronize();
  }
  denominator_ = static_cast<float>(total);
  return total;
}

void BatchBuffers::reduce_sums(const Context& context, Communicator& communicator) const {
  LossSumsData* sums = sums_->data();
  static_assert(offsetof(LossSumsData, weight_sum) == 2 * sizeof(double), "ce_sum, z_sum and weight_sum are one array");
  static_assert(offsetof(LossSumsData, nonfinite_rows) - offsetof(LossSumsData, n_valid) == sizeof(std::int64_t));
  char* counts = reinterpret_cast<char*>(sums) + offsetof(LossSumsData, n_valid);
  communicator.all_reduce(context, Tensor(sums, DType::fp64, {3}, context.device()));
  communicator.all_reduce(context, Tensor(counts, DType::int64, {2}, context.device()));
}

}  // namespace greyhound
