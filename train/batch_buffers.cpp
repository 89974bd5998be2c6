#include <greyhound/train/batch_buffers.h>

#include <greyhound/core/memory.h>

#include <cstddef>

namespace greyhound {

void BatchBuffers::plan(ArenaPlan& plan, std::int64_t rows, std::int64_t block_size) {
  slots_.tokens = plan.add("batch", "tokens", DType::int32, {rows, block_size});
  slots_.targets = plan.add("batch", "targets", DType::int32, {rows, block_size});
  slots_.count = plan.add("batch", "valid_targets", DType::int64, {1});
  slots_.denominator = plan.add("batch", "denominator", DType::fp32, {1});
  slots_.sums = plan.add("batch", "loss_sums", DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)});
}

void BatchBuffers::bind(const Context& context, const Arena& arena) {
  tokens_ = arena[slots_.tokens];
  targets_ = arena[slots_.targets];
  count_ = arena[slots_.count];
  denominator_ = arena[slots_.denominator];
  sums_.emplace(context, arena[slots_.sums].data);
}

Batch BatchBuffers::load(const Context& context, const HostBatch& batch) const {
  const Tensor tokens = tokens_.row_range(0, batch.rows), targets = targets_.row_range(0, batch.rows);
  copy(context, tokens, batch.tokens);
  copy(context, targets, batch.targets);
  return {tokens, targets, batch.first_row};
}

std::int64_t BatchBuffers::set_denominator(const Context& context, Communicator& communicator,
                                           std::int64_t valid_targets) const {
  // Counted as integers: fp32 sums of counts stop being exact at 2^24.
  copy_bytes(context, count_.data, count_.device, &valid_targets, Device::cpu(), sizeof valid_targets);
  communicator.all_reduce(context, count_);
  std::int64_t total = 0;
  copy_bytes(context, &total, Device::cpu(), count_.data, count_.device, sizeof total);
  context.synchronize();
  const float denominator = static_cast<float>(total);
  copy_bytes(context, denominator_.data, denominator_.device, &denominator, Device::cpu(), sizeof denominator);
  context.synchronize();
  return total;
}

loss::Report BatchBuffers::reduce_sums(const Context& context, Communicator& communicator) const {
  LossSumsData* sums = sums_->data();
  static_assert(offsetof(LossSumsData, weight_sum) == 2 * sizeof(double), "ce_sum, z_sum and weight_sum are one array");
  static_assert(offsetof(LossSumsData, nonfinite_rows) - offsetof(LossSumsData, n_valid) == sizeof(std::int64_t));
  char* counts = reinterpret_cast<char*>(sums) + offsetof(LossSumsData, n_valid);
  communicator.all_reduce(context, Tensor(sums, DType::fp64, {3}, context.device()));
  communicator.all_reduce(context, Tensor(counts, DType::int64, {2}, context.device()));
  return sums_->read(context);
}

}  // namespace greyhound
