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
    "Exit codes: 0 done (also after Ctrl-C or SIGTERM during training, once the weights are saved), 1 a failure at "
    "run "
    "time,\n2 a mistake on the command line or in the configuration.";

// The same checks as of the key in a configuration. CLI11's own take NaN, and whole numbers that overflow.
CLI::Validator as_key(const char* section, const char* name, double low) {
  ConfigKey key = *find_config_key(section, name);
  key.range.low = low;
  const auto check = [key](const std::string& text) {
    try {
      parse_value(key, text, false, "'" + text + "'");
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  return CLI::Validator(check, "");
}

void add_train(CLI::App& app, TrainOptions& options) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a YAML configuration says");
  command->add_option("CONFIG", options.config, "YAML file; configs/reference.yaml explains every key")->required();
  command->add_option("OVERRIDES", options.overrides, "section.key=value, as in train.max_steps=500");
  command->add_flag("--overwrite", options.overwrite, "Replace the run that is in run.dir");
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
  command->footer("What is not given is taken from the run's configuration.");
  command->callback([&options] { sample_command(options); });
}

void add_eval(CLI::App& app, EvalOptions& options) {
  CLI::App* command = app.add_subcommand("eval", "Loss of a trained run on its held-out data");
  command->add_option("RUN_DIR", options.run_dir, "Folder of the run")->required();
  command->add_option("--batches", options.batches, "Micro-batches to look at; 0: all. The default is eval.batches")
      ->check(as_key("eval", "batches", 0));
  command->callback([&options] { eval_command(options); });
}

}  // namespace

void run_cli(int argc, const char* const* argv) {
  TrainOptions train;
  SampleOptions sample;
  EvalOptions eval;
  CLI::App app("Trains small GPT models, samples from them and evaluates them.", "greyhound");
  app.set_version_flag("--version", version_text, "Version, backends and libraries");
  app.require_subcommand(0, 1);  // its own message would hide a misspelt command
  app.footer(exit_codes);
  add_train(app, train);
  add_sample(app, sample);
  add_eval(app, eval);
  try {
    app.parse(argc, argv);
    require(!app.get_subcommands().empty(), "expected a command: train, sample or eval (see greyhound --help)");
  } catch (const CLI::CallForHelp& call) {
    app.exit(call, std::cout, std::cerr);
  } catch (const CLI::CallForAllHelp& call) {
    app.exit(call, std::cout, std::cerr);
  } catch (const CLI::CallForVersion& call) {
    app.exit(call, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    throw_usage(error.what(), " (see greyhound --help)");
  }
}

}  // namespace greyhound
