// Going on with a run: which settings must be the same, and how every rank gets the state.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/train/batch_plan.h>
#include <greyhound/train/checkpoint.h>
#include <greyhound/train/config.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/tokenizer.h>

#include <set>

#include <string>
#include <vector>

namespace greyhound {

// What a checkpoint of this run says of it; step, tokens and values are left open.
CheckpointInfo describe_run(const Config& config, const BatchPlan& batch, const Tokenizer& tokenizer,
                            std::vector<DataFile> data);

// Throws a usage Error that names every setting in which `now` differs from the run of the checkpoint and which would
// make it another run: model, data, tokenizer, loss, optimizer, schedule, seed, precision, tokens of a step. Free are
// the number of ranks, train.micro_batch and what changes no result (ConfigKey::free_on_resume), and train.max_steps.
// Throws a runtime Error when the checkpoint's counters contradict each other.
void require_same_run(const Checkpoint& checkpoint, const CheckpointInfo& now, const RunDir& run_dir);

// For load_config: takes the keys of model and data.tokenizer that were not given from the configuration of the run,
// which has every key, so that model.init_from need not be there any more.
void complete_from_run(Config& config, const std::set<std::string>& given, const RunDir& run_dir);

// Puts the state of the checkpoint back, which the root rank has, and gives it to the other ranks (nullptr there).
void restore_state(const Checkpoint* checkpoint, const Context& context, Communicator& communicator,
                   const ParameterList& parameters, Stateful& state);

// The root rank's value, on every rank.
std::int64_t broadcast(std::int64_t value, Communicator& communicator);

}  // namespace greyhound
