#include <greyhound/kernels/operator_observer.h>

#include <utility>

namespace greyhound {

namespace {

thread_local OperatorObserver* current = nullptr;

}  // namespace

OperatorObserver::~OperatorObserver() = default;

OperatorObserver* observe_operators(OperatorObserver* observer) { return std::exchange(current, observer); }

OperatorObserver* detail::current_operator_observer() { return current; }

}  // namespace greyhound
