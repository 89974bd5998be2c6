#include <greyhound/train/cli.h>

#include <greyhound/core/error.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/version.h>
#include <CLI/CLI.hpp>

#include <iostream>

namespace greyhound {

namespace {

constexpr const char* exit_codes =
    "Exit codes: 0 done (also after Ctrl-C or SIGTERM during training, once a checkpoint is saved), 1 a failure at "
    "run "
    "time,\n2 a mistake on the command line or in the configuration.";

// The same checks as of the key in a configuration. CLI11's own take NaN, and whole numbers that overflow.
CLI::Validator in_range(const ConfigKey& key) {
  const auto check = [key](const std::string& text) {
    try {
      parse_value(key, text, false, "");
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what()).substr(2 + key.name().size() + 2);  // CLI11 names the option
    }
  };
  return CLI::Validator(check, "");
}

CLI::Validator as_key(const char* section, const char* name, double low) {
  ConfigKey key = *find_config_key(section, name);
  key.meaning.clear();  // the option has its own
  key.range.low = low;
  return in_range(key);
}

// Of a whole number that is no key of the configuration.
CLI::Validator from_to(double low, double high) {
  ConfigKey key;
  key.default_value = std::int64_t{0};
  key.range = {low, high};
  return in_range(key);
}

void add_device(CLI::App* command, std::optional<std::string>& device) {
  command->add_option("--device", device, "auto, cpu or cuda; the default is the run's run.device")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

void add_train(CLI::App& app, TrainOptions& options) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a YAML configuration says");
  command->add_option("CONFIG", options.config, "YAML file; configs/reference.yaml explains every key")->required();
  command->add_option("OVERRIDES", options.overrides, "section.key=value, as in train.max_steps=500");
  CLI::Option* overwrite = command->add_flag("--overwrite", options.overwrite, "Replace the run that is in run.dir");
  command
      ->add_flag("--resume", options.resume,
                 "Go on with the run in run.dir from its newest checkpoint; start it when there is none")
      ->excludes(overwrite);
  command->callback([&options] { train_command(options); });
}

void add_sample(CLI::App& app, SampleOptions& options) {
  CLI::App* command = app.add_subcommand("sample", "Generate text from a trained run");
  command->add_option("RUN_DIR", options.run_dir, "Folder of the run")->required();
  command->add_option("--prompt", options.prompt, "Text to go on from");
  command->add_option("--tokens", options.tokens, "Tokens to generate")->check(as_key("sample", "tokens", 0));
  command->add_option("--temperature", options.temperature, "0: always the most likely token")
      ->check(as_key("sample", "temperature", 0));
  command->add_option("--top-k", options.top_k, "Draw from the k most likely tokens; 0: from all")
      ->check(as_key("sample", "top_k", 0));
  command->add_option("--seed", options.seed, "Of the random numbers; the default is run.seed")
      ->check(as_key("run", "seed", 0));
  add_device(command, options.device);
  command->footer(std::string("What is not given is taken from the run's configuration.\n\n") + exit_codes);
  command->callback([&options] { sample_command(options); });
}

void add_eval(CLI::App& app, EvalOptions& options) {
  CLI::App* command = app.add_subcommand("eval", "Loss and perplexity of a trained run on its held-out data");
  command->add_option("RUN_DIR", options.run_dir, "Folder of the run")->required();
  command->add_option("--data", options.data, "Text or token shards to look at instead, a path or a glob");
  command
      ->add_option("--batches", options.batches,
                   "Micro-batches to look at; 0: all. The default is eval.batches, all of --data")
      ->check(as_key("eval", "batches", 0));
  add_device(command, options.device);
  command->callback([&options] { eval_command(options); });
}

void add_tokenize(CLI::App& app, TokenizeOptions& options) {
  CLI::App* command = app.add_subcommand("tokenize", "Make token shards of text with a BPE tokenizer, such as GPT-2's");
  command->add_option("FILES", options.files, "Text; .jsonl: lines of JSON, one document each in \"text\"")->required();
  command
      ->add_option("--tokenizer", options.tokenizer, "tokenizer.json, or a folder with it or vocab.json and merges.txt")
      ->required();
  command->add_option("--out", options.out, "Folder for the shards and the tokenizer")->required();
  command->add_option("--val-fraction", options.val_fraction, "Held out of each file, from its end")
      ->capture_default_str()
      ->check(as_key("data", "val_fraction", 0));
  command->add_option("--shard-tokens", options.shard_tokens, "Tokens of a shard")
      ->capture_default_str()
      ->check(from_to(1, 2147483647));  // llm.c counts them in 31 bits
  command->add_option("--threads", options.threads, "0: one a core")->check(from_to(0, 1024));
  command->add_flag("--special-tokens", options.special_tokens, "Special tokens written in the text become tokens");
  command->add_flag("--overwrite", options.overwrite, "Replace the shards that are in the folder");
  command->callback([&options] { tokenize_command(options); });
}

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "What was built, what is found, and which device a run takes");
  command->callback([] { info_command(); });
}

void add_export(CLI::App& app, ExportOptions& options) {
  CLI::App* command = app.add_subcommand("export", "Write a trained run for other programs");
  command->add_option("RUN_DIR", options.run_dir, "Folder of the run")->required();
  command->add_option("OUT", options.out, "Folder (hf) or file (llmc) to write")->required();
  command->add_option("--format", options.format, "hf: a folder for transformers' GPT2LMHeadModel; llmc: a llm.c model")
      ->required()
      ->check(CLI::IsMember({"hf", "llmc"}));
  command->add_option("--dtype", options.dtype, "Of the weights: fp32 or bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->callback([&options] { export_command(options); });
}

// CLI11 says of these that one argument was expected and several were given, of which nobody thinks who repeats one.
void require_given_once(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      const bool repeated = option->get_expected_max() == 1 && option->count() > 1;
      require(!repeated, option->get_name(), ": given ", option->count(), " times, expected once");
    }
  }
}

}  // namespace

void run_cli(int argc, const char* const* argv) {
  TrainOptions train;
  SampleOptions sample;
  EvalOptions eval;
  TokenizeOptions tokenize;
  ExportOptions export_options;
  CLI::App app("Trains small GPT models, samples from them and evaluates them.", "greyhound");
  app.set_version_flag("--version", version_text, "Version, backends and libraries");
  app.require_subcommand(0, 1);  // its own message would hide a misspelt command
  app.footer(exit_codes);
  add_train(app, train);
  add_sample(app, sample);
  add_eval(app, eval);
  add_tokenize(app, tokenize);
  add_export(app, export_options);
  add_info(app);
  try {
    app.parse(argc, argv);
    require(!app.get_subcommands().empty(),
            "expected a command: train, sample, eval, tokenize, export or info (see greyhound --help)");
  } catch (const CLI::CallForHelp& call) {
    app.exit(call, std::cout, std::cerr);
  } catch (const CLI::CallForAllHelp& call) {
    app.exit(call, std::cout, std::cerr);
  } catch (const CLI::CallForVersion& call) {
    app.exit(call, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    require_given_once(app);
    throw_usage(error.what(), " (see greyhound --help)");
  }
}

}  // namespace greyhound
