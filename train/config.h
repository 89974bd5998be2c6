// The configuration of a run: strict YAML, every key once in one table (config_schema.h).
#pragma once

#include <greyhound/core/dtype.h>
#include <greyhound/loss/plan.h>
#include <greyhound/models/recompute.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace greyhound {

enum class ScheduleKind { constant, linear, cosine };
enum class OnError { warn, stop };

// One member per section and key, under the YAML's names. The initial values are placed by the schema table: make
// one with default_config() or load_config(). What each key means: configs/reference.yaml.
struct Config {
  struct Run {
    std::string dir;
    std::int64_t seed;
    std::string device;  // "auto", "cpu" or "cuda"
    DType precision;     // fp32 or bf16
    bool cuda_graphs;
    bool tune_products;
  } run{};
  struct Model {
    std::int64_t n_layer, n_head, n_embd, block_size;
    std::int64_t vocab_size;  // 0: the data's
    std::int64_t vocab_multiple;
    bool bias, tie_embeddings;
    double dropout;
    std::string init_from;  // a run, a llm.c model or a Hugging Face folder; empty: random weights
  } model{};
  struct Data {
    std::string train, val;  // a path, a glob or "synthetic"; val may be empty
    double val_fraction;
    std::string tokenizer;      // of text: "byte", "char", or the path of a BPE tokenizer
    std::int64_t ignore_token;  // -1: none
  } data{};
  struct Loss {
    double z_loss_multiplier, label_smoothing, softcap;
    std::int64_t max_workspace_mb;  // 0: the loss module's default plan
    loss::AccumDType grad_weight_accum_dtype;
  } loss{};
  struct Optimizer {
    double lr, beta1, beta2, eps, weight_decay;
    double grad_clip;  // 0: off
  } optimizer{};
  struct Schedule {
    ScheduleKind kind;
    std::int64_t warmup_steps;
    double final_lr_fraction;
  } schedule{};
  struct Train {
    std::int64_t micro_batch;   // a ceiling, in rows
    std::int64_t batch_tokens;  // of the whole step over all ranks; 0: micro_batch * block_size * ranks
    std::int64_t max_steps;
    Recompute recompute;
    bool overfit_batch;
  } train{};
  struct Distributed {
    DType reduce_dtype;      // of gradients on their way between ranks: fp32 or bf16
    std::int64_t bucket_mb;  // least MiB of gradients that are reduced at once
    std::int64_t timeout_s;  // how long a rank waits for others; 0: for ever
  } distributed{};
  struct Eval {
    std::int64_t every;    // steps; 0: never
    std::int64_t batches;  // of micro_batch rows each; 0: the whole held-out split
  } eval{};
  struct Sample {
    std::int64_t every;  // steps; 0: never
    std::int64_t tokens;
    double temperature;  // 0: the most likely token
    std::int64_t top_k;  // 0: off
    std::string prompt;
  } sample{};
  struct Checkpoint {
    std::int64_t every;  // steps; 0: only at the end
    std::int64_t keep;   // 0: all
    bool background;
    OnError on_error;
  } checkpoint{};
  struct Log {
    std::int64_t every;  // steps; 0: never
  } log{};
};

// The default of every key.
Config default_config();

// Fills in what the keys that were given leave open; `given` holds their names ("model.n_layer").
using ConfigCompletion = std::function<void(Config& config, const std::set<std::string>& given)>;

// Reads a YAML file, then applies `overrides` ("section.key=value", later ones win; the value is written as in YAML),
// lets `complete` fill in the rest, and checks the values against each other. Throws a usage Error of one line:
// "FILE:LINE:COLUMN: ..." for an unknown section or key (with the nearest known one), a wrong type, a value out of
// range, a duplicate or bad YAML; an error in an override names the override.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {},
                   const ConfigCompletion& complete = {});

// The same from text; `name` stands for the file in messages.
Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides = {},
                    const ConfigCompletion& complete = {});

// Every section and key with its value; parse_config() of it gives the same Config, to the bit.
std::string to_yaml(const Config& config);

// Values that must fit each other (n_embd and n_head, warm-up and run, ...). load_config() calls it; call it again
// after changing a Config. Throws a usage Error with the numbers.
void validate(const Config& config);

}  // namespace greyhound
