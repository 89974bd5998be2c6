// The program's commands. Each throws an Error when it cannot do what it was asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace greyhound {

struct TrainOptions {
  std::string config;                  // path of a YAML file
  std::vector<std::string> overrides;  // "section.key=value"
  bool overwrite = false;              // replace a run that is in run.dir
  bool resume = false;                 // go on with it
};
void train_command(const TrainOptions& options);

// What is not given is taken from the run's own configuration.
struct SampleOptions {
  std::string run_dir;
  std::optional<std::string> prompt;
  std::optional<std::int64_t> tokens;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<std::int64_t> seed;
  std::optional<std::string> device;  // as run.device
};
void sample_command(const SampleOptions& options);

struct EvalOptions {
  std::string run_dir;
  std::optional<std::string> data;      // text or token shards, all of it, in place of the held-out split
  std::optional<std::int64_t> batches;  // 0: the whole held-out split
  std::optional<std::string> device;    // as run.device
};
void eval_command(const EvalOptions& options);

// What was built, what is found, which device a run takes and what to do for a GPU.
void info_command();

struct TokenizeOptions {
  std::string tokenizer;           // tokenizer.json, or a folder with it or with vocab.json and merges.txt
  std::string out;                 // folder
  std::vector<std::string> files;  // text, or lines of JSON with a `text`
  double val_fraction = 0.1;       // of each file, from its end
  std::int64_t shard_tokens = 100000000;
  std::int64_t threads = 0;     // 0: one a core
  bool special_tokens = false;  // "<|endoftext|>" in the text becomes the token
  bool overwrite = false;       // replace the shards in `out`
};
void tokenize_command(const TokenizeOptions& options);

struct ExportOptions {
  std::string run_dir;
  std::string out;             // a folder (hf) or a file (llmc), not there yet
  std::string format;          // "hf" or "llmc"
  std::string dtype = "fp32";  // or "bf16"
};
void export_command(const ExportOptions& options);

}  // namespace greyhound
