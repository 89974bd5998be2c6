// What the ranks of a run must agree on before it starts: that all of them got this far, and with the same inputs.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/core/error.h>
#include <greyhound/train/config.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace greyhound {

// Every rank has thrown the same one: one of them prints it, and none needs to end the others.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Runs `work` on every rank. When it throws on some of them, all throw an AgreedError that says on which, and why.
// Collective; `work` itself calls no collectives, since nobody would come to them when another rank's work fails.
void run_together(Communicator& communicator, const std::function<void()>& work);

// The same for work that returns something.
template <class Function>
auto get_together(Communicator& communicator, Function&& work) {
  std::optional<decltype(work())> result;
  run_together(communicator, [&] { result.emplace(work()); });
  return std::move(*result);
}

// choose_gpu() for run.device `wish`, whose error is then an AgreedError: the number of this rank's GPU; 0 also when no
// rank sees one and when the wish is "cpu". Collective.
int agree_on_gpu(Communicator& communicator, const std::string& wish);

// A name and its value on this rank.
struct Fact {
  std::string name, value;
};

// Throws an AgreedError (usage) that starts with `what` and names the facts that differ, their values and the ranks,
// unless all ranks have the same list. Collective.
void require_same(Communicator& communicator, const std::string& what, const std::vector<Fact>& facts);

// The program's version and every key of the configuration.
std::vector<Fact> facts_of(const Config& config);

// The files that data.train, data.val, data.tokenizer and model.init_from name: path, size and a hash of both ends.
std::vector<Fact> facts_of_files(const Config& config);

// require_same for both. Collective.
void require_same_inputs(Communicator& communicator, const Config& config);

}  // namespace greyhound
