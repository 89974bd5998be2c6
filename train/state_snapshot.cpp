#include <greyhound/train/state_snapshot.h>

#include <greyhound/core/memory.h>

#include <utility>
#include <vector>

namespace greyhound {

namespace {

class Look final : public StateVisitor {
 public:
  void tensor(const std::string& name, const Tensor& value) override { tensors.emplace_back(name, value); }
  void integer(const std::string& name, std::int64_t& value) override { values[name] = value; }
  void real(const std::string& name, double& value) override { values[name] = value; }
  void text(const std::string& name, std::string& value) override { values[name] = value; }

  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, StateValue> values;
};

Look look_at(Stateful& state) {
  Look look;
  state.visit_state(look);
  return look;
}

}  // namespace

void StateSnapshot::reserve(Stateful& state) {
  const Look look = look_at(state);
  ArenaPlan plan;
  std::vector<ArenaPlan::Slot> slots;
  for (const auto& [name, value] : look.tensors) {
    slots.push_back(plan.add("checkpoint snapshot", name, value.dtype, value.shape));
  }
  arena_ = Arena(Context::cpu(), plan);
  for (std::size_t i = 0; i < slots.size(); ++i) copies_[look.tensors[i].first] = arena_[slots[i]];
}

void StateSnapshot::take(Stateful& state) {
  const Look look = look_at(state);
  values_ = look.values;
  for (const auto& [name, value] : look.tensors) {
    if (copies_.count(name) == 0 && !value.device.is_cpu()) reserve(state);
    const auto copied = copies_.find(name);
    if (copied != copies_.end()) copy(context_, copied->second, value);
    tensors_[name] = copied != copies_.end() ? copied->second : value;
  }
  context_.synchronize();
}

}  // namespace greyhound
