#include <greyhound/loss/sums.h>

#include <greyhound/core/memory.h>

#include <cstdint>

namespace greyhound::loss {

LossSums::LossSums(const Context& context, void* storage)
    : data_(static_cast<LossSumsData*>(storage)), device_(context.device()) {
  require(storage != nullptr, "LossSums: no storage given");
  require(reinterpret_cast<std::uintptr_t>(storage) % alignment == 0, "LossSums: storage must be aligned to ",
          +alignment, " bytes");
}

void LossSums::reset(const Context& context) { fill_bytes(context, data_, 0, bytes); }

void LossSums::read_async(const Context& context, LossSumsData* host) const {
  copy_bytes(context, host, Device::cpu(), data_, device_, bytes);
}

Report LossSums::read_unchecked(const Context& context) const {
  LossSumsData host;
  read_async(context, &host);
  context.synchronize();
  return report(host);
}

Report LossSums::read(const Context& context) const {
  const Report result = read_unchecked(context);
  result.check();
  return result;
}

Report LossSums::report(const LossSumsData& host) {
  return {host.ce_sum, host.z_sum, host.weight_sum, host.n_valid, host.nonfinite_rows, host.errors};
}

void Report::check() const {
  if (errors.count == 0) return;
  throw_runtime("cross_entropy: target ", errors.value, " in row ", errors.first_row,
                " is outside the vocabulary and not ignore_index (", errors.count, " such ",
                errors.count == 1 ? "row" : "rows", ")");
}

}  // namespace greyhound::loss
