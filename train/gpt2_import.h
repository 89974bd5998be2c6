// Models to start from: a run of ours, a llm.c model, or a Hugging Face folder of a GPT-2.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/models/parameters.h>
#include <greyhound/train/config.h>
#include <greyhound/train/gpt2_layout.h>
#include <greyhound/train/tokenizer.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

namespace greyhound {

// A tensor as a file holds it, in host memory: fp32, bf16 or fp16.
struct StoredTensor {
  ConstTensor values;  // [out, in], [in, out] when transposed, or a vector; vocabularies may have rows beyond V
  bool transposed = false;
};

// What one of the formats said: complete, with every shape checked against the sizes.
struct ModelFile {
  std::string path;
  std::string format;  // "Greyhound run", "llm.c model (version 3)", "Hugging Face GPT-2"
  Gpt2Sizes sizes;
  std::unordered_map<std::string, StoredTensor> tensors;  // under Hugging Face's names, without a prefix
  std::shared_ptr<const void> file;                       // what the views look into
};

// Recognises the format. Throws an Error of one line that names the path: a usage Error when there is nothing of the
// kind, a runtime Error when the file is malformed or of a model that is not GPT-2 as we compute it. Allocates in
// proportion to the number of tensors that the file holds.
ModelFile open_model(const std::string& path);
ModelFile read_run_model(const std::string& run_dir);
bool is_run_folder(const std::string& path);  // of a Greyhound run, whole or not

// Adds the tensor `name` of that kind; throws a runtime Error unless its dtype is a floating-point one of ours and its
// shape is that of the sizes, with at least as many rows where rows are the vocabulary's.
void add_tensor(ModelFile& model, const Gpt2Tensor& kind, const std::string& name, const StoredTensor& stored);

// The first rows of the stored tensor, as [out, in], into a contiguous tensor in host memory (fp32 or bf16): exact
// where the dtype can hold the values.
void read_tensor(const StoredTensor& stored, const Tensor& to);

// For load_config: sets keys of the model section that were not given to what model.init_from says, and throws a usage
// Error that names every given one which differs. A smaller block_size is no difference: the first positions are taken.
// data.tokenizer is settled likewise where the tokens of the weights are known: of a run of ours on text, and where a
// BPE tokenizer lies beside the weights, whose place may be another one. `given` holds names such as "model.n_layer".
// Does nothing without model.init_from.
void complete_model_section(Config& config, const std::set<std::string>& given);

// The byte or character tokenizer of the run in model.init_from, whose tokens the weights know; none when that is no
// such run.
std::optional<Tokenizer> initial_tokenizer(const Config& config);

// Weights [block_elements] fp32 to start training from: those of model.init_from, or drawn from run.seed without one.
// Padded rows are zero. Throws a runtime Error with the file and the tensor for weights that are NaN or infinite.
void initialize_weights(const Context& context, const Config& config, const ParameterList& parameters,
                        const Tensor& weights);
void load_weights(const ModelFile& model, const Context& context, const ParameterList& parameters,
                  const Tensor& weights);

}  // namespace greyhound
