#include <greyhound/core/error.h>
#include <greyhound/train/config_schema.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

namespace greyhound {
namespace {

// Members of enumeration type are words in YAML.
template <class Enum>
using Words = std::initializer_list<std::pair<const char*, Enum>>;

template <class Enum>
constexpr Words<Enum> words = {};
template <>
constexpr Words<DType> words<DType> = {{"fp32", DType::fp32}, {"bf16", DType::bf16}};
template <>
constexpr Words<ScheduleKind> words<ScheduleKind> = {
    {"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear}, {"cosine", ScheduleKind::cosine}};
template <>
constexpr Words<OnError> words<OnError> = {{"warn", OnError::warn}, {"stop", OnError::stop}};
template <>
constexpr Words<Recompute> words<Recompute> = {{"none", Recompute::none},
                                               {"gelu", Recompute::gelu},
                                               {"gelu_norm", Recompute::gelu_norm},
                                               {"block", Recompute::block}};
template <>
constexpr Words<loss::AccumDType> words<loss::AccumDType> = {{"fp32", loss::AccumDType::fp32},
                                                             {"weight", loss::AccumDType::weight}};

template <class Type>
ConfigValue to_value(const Type& member) {
  if constexpr (std::is_enum_v<Type>) {
    for (const auto& [word, value] : words<Type>) {
      if (value == member) return std::string(word);
    }
    return std::string();  // a value that has no word; validate() refuses it
  } else {
    return member;
  }
}

template <class Type>
void from_value(const ConfigValue& value, Type& member) {
  if constexpr (std::is_enum_v<Type>) {
    for (const auto& [word, choice] : words<Type>) {
      if (std::get<std::string>(value) == word) member = choice;
    }
  } else {
    member = std::get<Type>(value);
  }
}

// What may follow a key in the table below.
struct Entry {
  ConfigKey& key;

  Entry& range(double low, double high) {
    key.range = {low, high};
    return *this;
  }
  Entry& at_least(double low) {
    key.range.low = low;
    return *this;
  }
  Entry& above(double low) {
    key.range.low = low;
    key.range.low_open = true;
    return *this;
  }
  Entry& below(double high) {
    key.range.high = high;
    key.range.high_open = true;
    return *this;
  }
  Entry& one_of(std::vector<std::string> choices) {
    key.choices = std::move(choices);
    return *this;
  }
  Entry& free_on_resume() {
    key.free_on_resume = true;
    return *this;
  }
  Entry& also(std::vector<std::string> names) {
    key.other_names = std::move(names);
    return *this;
  }
};

// One section of the table; the type of a key is that of its member.
template <class Section>
class Keys {
 public:
  // free_on_resume: of all keys of the section.
  Keys(std::vector<ConfigKey>& table, const char* name, Section Config::*section, bool free_on_resume = false)
      : table_(table), name_(name), section_(section), free_on_resume_(free_on_resume) {}

  template <class Type>
  Entry operator()(const char* key, Type Section::*member, std::type_identity_t<Type> default_value,
                   const char* meaning) {
    ConfigKey entry;
    entry.section = name_;
    entry.key = key;
    entry.default_value = to_value(default_value);
    entry.meaning = meaning;
    entry.free_on_resume = free_on_resume_;
    if constexpr (std::is_enum_v<Type>) {
      for (const auto& [word, value] : words<Type>) entry.choices.push_back(word);
    }
    const auto section = section_;
    entry.set = [section, member](Config& config, const ConfigValue& value) {
      from_value(value, config.*section.*member);
    };
    entry.get = [section, member](const Config& config) { return to_value(config.*section.*member); };
    table_.push_back(std::move(entry));
    return Entry{table_.back()};
  }

 private:
  std::vector<ConfigKey>& table_;
  const char* name_;
  Section Config::*section_;
  bool free_on_resume_;
};

std::vector<ConfigKey> make_schema() {
  // Upper ends keep products of sizes within 64 bits, far above anything that fits a machine.
  constexpr double large = 1 << 30, most_ids = 2147483647;
  constexpr double whole = 9007199254740992;  // 2^53
  std::vector<ConfigKey> table;
  {
    Keys key(table, "run", &Config::run);
    using S = Config::Run;
    key("dir", &S::dir, "runs/default", "folder for log, metrics, weights and the resolved configuration")
        .also({"out_dir", "output_dir", "folder"})
        .free_on_resume();
    key("seed", &S::seed, 1, "of initial weights, order of the data, dropout and sampling").range(0, whole);
    key("device", &S::device, "auto", "where to compute; auto takes a GPU when one answers")
        .one_of({"auto", "cpu", "cuda"})
        .free_on_resume();
    key("precision", &S::precision, DType::fp32, "of activations and of the weights that products read")
        .also({"dtype"});
    key("cuda_graphs", &S::cuda_graphs, true,
        "start the work on a micro-batch as a whole on a GPU, not kernel by kernel; the same bits")
        .also({"use_cuda_graphs", "graphs"})
        .free_on_resume();
    key("tune_products", &S::tune_products, false,
        "time the algorithms of a GPU's matrix products before the first step; the same bits")
        .also({"tune", "autotune"})
        .free_on_resume();
  }
  {
    Keys key(table, "model", &Config::model);
    using S = Config::Model;
    key("n_layer", &S::n_layer, 4, "transformer blocks").range(1, 65536).also({"layers", "num_layers", "depth"});
    key("n_head", &S::n_head, 4, "attention heads of a block").range(1, 65536).also({"heads", "num_heads"});
    key("n_embd", &S::n_embd, 128, "width of the model").range(1, 1 << 20).also({"hidden_size", "d_model", "width"});
    key("block_size", &S::block_size, 64, "tokens of a row, the longest context")
        .range(1, 1 << 24)
        .also({"context_length", "sequence_length", "seq_len", "n_positions"});
    key("vocab_size", &S::vocab_size, 0, "token ids; 0 takes the data's").range(0, most_ids).also({"vocab"});
    key("vocab_multiple", &S::vocab_multiple, 128, "rows of the embedding are padded to a multiple of this")
        .range(1, 1 << 20);
    key("bias", &S::bias, true, "biases in linear layers and layer norms").also({"use_bias"});
    key("tie_embeddings", &S::tie_embeddings, true, "the head's weight is the token embedding")
        .also({"tie_word_embeddings", "tied"});
    key("dropout", &S::dropout, 0, "probability of dropping an activation").at_least(0).below(1);
    key("init_from", &S::init_from, "", "a trained model to start from; empty: random weights")
        .also({"pretrained", "load_from", "checkpoint"})
        .free_on_resume();
  }
  {
    Keys key(table, "data", &Config::data);
    using S = Config::Data;
    key("train", &S::train, "data/austen.txt", "a path or glob of text or token shards, or `synthetic`")
        .also({"dataset", "input", "path", "file"});
    key("val", &S::val, "", "the same for evaluation; empty holds out the end of the text")
        .also({"validation", "valid"});
    key("val_fraction", &S::val_fraction, 0.1, "how much of the text is held out when val is empty")
        .at_least(0)
        .below(1);
    key("tokenizer", &S::tokenizer, "byte", "of text: byte, char, or the path of a BPE tokenizer")
        .also({"tokenizer_path", "encoding"});
    key("ignore_token", &S::ignore_token, -1, "targets with this id add nothing to the loss; -1: none")
        .range(-1, most_ids)
        .also({"ignore_index", "pad_token"});
  }
  {
    Keys key(table, "loss", &Config::loss);
    using S = Config::Loss;
    key("z_loss_multiplier", &S::z_loss_multiplier, 0, "adds this times lse^2 to a token's loss")
        .range(0, large)
        .also({"z_loss", "lse_square_scale"});
    key("label_smoothing", &S::label_smoothing, 0, "share of the target spread over the vocabulary")
        .at_least(0)
        .below(1);
    key("softcap", &S::softcap, 0, "logits become c tanh(x / c); 0: off").range(0, large);
    key("max_workspace_mb", &S::max_workspace_mb, 0, "MiB that the head's logits may take; 0: chosen").range(0, large);
    key("grad_weight_accum_dtype", &S::grad_weight_accum_dtype, loss::AccumDType::fp32,
        "what the head's gradient is summed in");
  }
  {
    Keys key(table, "optimizer", &Config::optimizer);
    using S = Config::Optimizer;
    key("lr", &S::lr, 1e-3, "peak learning rate").range(0, large).also({"learning_rate", "max_lr"});
    key("beta1", &S::beta1, 0.9, "decay of AdamW's first moment").at_least(0).below(1);
    key("beta2", &S::beta2, 0.95, "decay of AdamW's second moment").at_least(0).below(1);
    key("eps", &S::eps, 1e-8, "added to the root of the second moment").above(0).below(1).also({"epsilon"});
    key("weight_decay", &S::weight_decay, 0.1, "decoupled decay, of matrices only").range(0, large).also({"decay"});
    key("grad_clip", &S::grad_clip, 1, "largest norm of the whole gradient; 0: off")
        .range(0, large)
        .also({"max_grad_norm", "clip"});
  }
  {
    Keys key(table, "schedule", &Config::schedule);
    using S = Config::Schedule;
    key("kind", &S::kind, ScheduleKind::cosine, "of the learning rate after warm-up").also({"lr_schedule", "type"});
    key("warmup_steps", &S::warmup_steps, 0, "steps in which the learning rate grows to its peak")
        .range(0, whole)
        .also({"warmup", "warmup_iters"});
    key("final_lr_fraction", &S::final_lr_fraction, 0.1, "learning rate of the last step, as a part of the peak")
        .range(0, 1)
        .also({"min_lr"});
  }
  {
    Keys key(table, "train", &Config::train);
    using S = Config::Train;
    key("micro_batch", &S::micro_batch, 12, "most rows that a rank takes through the model at once")
        .range(1, large)
        .also({"batch_size", "micro_batch_size", "device_batch_size"})
        .free_on_resume();
    key("batch_tokens", &S::batch_tokens, 0, "tokens of a step over all ranks; 0: one micro-batch a rank")
        .range(0, whole)
        .also({"total_batch_size", "tokens_per_step"})
        .free_on_resume();
    key("max_steps", &S::max_steps, 2000, "steps of the run")
        .range(1, whole)
        .also({"steps", "max_iters", "num_steps"})
        .free_on_resume();
    key("recompute", &S::recompute, Recompute::none,
        "what backward makes again to save memory; later words save more and take more time")
        .also({"activation_checkpointing", "gradient_checkpointing"})
        .free_on_resume();
    key("overfit_batch", &S::overfit_batch, false, "every step takes the first step's batch")
        .also({"overfit_single_batch"});
  }
  {
    Keys key(table, "distributed", &Config::distributed);
    using S = Config::Distributed;
    key("reduce_dtype", &S::reduce_dtype, DType::fp32, "of gradients on their way between ranks");
    key("bucket_mb", &S::bucket_mb, 25, "MiB of gradients, at least, that ranks add up at a time")
        .range(0, large)
        .free_on_resume();
    key("timeout_s", &S::timeout_s, 600, "seconds of a step that a rank waits for the others; 0: for ever")
        .range(0, large)
        .also({"timeout"})
        .free_on_resume();
  }
  {
    Keys key(table, "eval", &Config::eval, true);
    using S = Config::Eval;
    key("every", &S::every, 250, "steps between evaluations; 0: never").range(0, whole).also({"interval"});
    key("batches", &S::batches, 20, "batches of micro_batch rows of an evaluation; 0: the whole split")
        .range(0, large)
        .also({"iters", "steps"});
  }
  {
    Keys key(table, "sample", &Config::sample, true);
    using S = Config::Sample;
    key("every", &S::every, 0, "steps between samples; 0: never").range(0, whole).also({"interval"});
    key("tokens", &S::tokens, 200, "tokens of a sample").range(1, large).also({"max_new_tokens", "length"});
    key("temperature", &S::temperature, 1, "divides the logits; 0 takes the most likely token").range(0, large);
    key("top_k", &S::top_k, 0, "draws among this many most likely tokens; 0: all").range(0, most_ids);
    key("prompt", &S::prompt, "", "text that a sample starts from; empty: the start of a line");
  }
  {
    Keys key(table, "checkpoint", &Config::checkpoint, true);
    using S = Config::Checkpoint;
    key("every", &S::every, 0, "steps between checkpoints; 0: only at the end")
        .range(0, whole)
        .also({"interval", "save_every"});
    key("keep", &S::keep, 2, "the newest so many checkpoints are kept; 0: all")
        .range(0, whole)
        .also({"keep_last", "max_to_keep", "total_limit"});
    key("background", &S::background, true, "checkpoints are written while training goes on").also({"async"});
    key("on_error", &S::on_error, OnError::warn, "when a file of the run cannot be written: warn and go on, or stop");
  }
  {
    Keys key(table, "log", &Config::log, true);
    using S = Config::Log;
    key("every", &S::every, 10, "steps between log lines; 0: never").range(0, whole).also({"interval", "log_every"});
  }
  return table;
}

}  // namespace

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> schema = make_schema();
  return schema;
}

const ConfigKey* find_config_key(const std::string& section, const std::string& key) {
  for (const ConfigKey& entry : config_schema()) {
    if (entry.section == section && entry.key == key) return &entry;
  }
  return nullptr;
}

bool is_config_section(const std::string& section) {
  for (const ConfigKey& entry : config_schema()) {
    if (entry.section == section) return true;
  }
  return false;
}

}  // namespace greyhound
