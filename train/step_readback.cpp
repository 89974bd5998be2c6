#include <greyhound/train/step_readback.h>

#include <greyhound/core/memory.h>

namespace greyhound {

StepReadback::StepReadback(const Context& context)
    : host_(context, capacity * sizeof(Record)),
      begin_{Event(context), Event(context)},
      end_{Event(context), Event(context)} {}

void StepReadback::begin(const Context& context) {
  require(pending_ < capacity, "step: ", pending_, " steps wait to be read, of at most ", +capacity);
  begin_[next()].record(context);
}

void StepReadback::end(const Context& context, const loss::LossSums& sums, const ConstTensor& norm) {
  require(pending_ < capacity, "step: ", pending_, " steps wait to be read, of at most ", +capacity);
  Record& to = record(next());
  sums.read_async(context, &to.sums);
  copy_bytes(context, &to.norm, Device::cpu(), norm.data, norm.device, sizeof to.norm);
  end_[next()].record(context);
  ++pending_;
}

StepReadback::Values StepReadback::take() {
  require(pending_ > 0, "step: none waits to be read");
  const int slot = oldest_;
  oldest_ = (oldest_ + 1) % capacity;
  --pending_;
  end_[slot].wait();
  const Values values{loss::LossSums::report(record(slot).sums), record(slot).norm,
                      end_[slot].seconds_since(begin_[slot])};
  values.report.check();
  return values;
}

}  // namespace greyhound
