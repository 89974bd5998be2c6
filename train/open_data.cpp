// From data.train and data.val to a loader: finding files, telling text from shards, holding out, choosing the
// vocabulary.
#include <greyhound/core/error.h>
#include <greyhound/train/completion_data.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/synthetic_data.h>
#include <greyhound/train/text_data.h>
#include <greyhound/train/text_file_check.h>
#include <greyhound/train/token_cache.h>
#include <greyhound/train/token_shards.h>
#include <greyhound/train/tokenize_files.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace greyhound {
namespace {

constexpr std::int64_t gpt2_vocab_size = 50257;  // what 16-bit token shards hold unless something says otherwise

enum class FileKind { text, shards, completions };
constexpr const char* kind_names[] = {"text", "a token shard", "prompts and completions"};

FileKind kind_of(const std::string& path) {
  if (std::filesystem::path(path).extension() == ".bin" || looks_like_token_shard(path)) return FileKind::shards;
  refuse_misnamed_json_lines(path);
  return holds_completions(path) ? FileKind::completions : FileKind::text;
}

// All files of a split are of one kind.
FileKind kind_of(const char* key, const std::vector<std::string>& paths) {
  const FileKind first = kind_of(paths.front());
  for (const std::string& path : paths) {
    const FileKind kind = kind_of(path);
    require(kind == first, key, ": ", path, " is ", kind_names[static_cast<int>(kind)], ", but ", paths.front(), " is ",
            kind_names[static_cast<int>(first)]);
  }
  return first;
}

struct Sources {
  std::shared_ptr<const DataSource> train, validation;  // validation may be nullptr
  Tokenizer tokenizer;
  std::int64_t vocab_size = 0;  // the data's own
  std::string description;
};

class Opener {
 public:
  Opener(const Config& config, const BatchPlan& plan, const Tokenizer* tokenizer, std::vector<std::string>& warnings)
      : config_(config), plan_(plan), stored_tokenizer_(tokenizer), warnings_(warnings) {}

  Sources open() {
    if (config_.data.train == "synthetic") return open_synthetic();
    const std::vector<std::string> train = find_files("data.train", config_.data.train);
    const std::vector<std::string> val =
        config_.data.val.empty() ? std::vector<std::string>() : find_files("data.val", config_.data.val);
    const FileKind kind = kind_of("data.train", train);
    const FileKind val_kind = val.empty() ? kind : kind_of("data.val", val);
    require(val_kind == kind, "data.train and data.val: ", train.front(), " is ", kind_names[static_cast<int>(kind)],
            ", but ", val.empty() ? "" : val.front(), " is ", kind_names[static_cast<int>(val_kind)]);
    switch (kind) {
      case FileKind::shards: return open_shards(train, val);
      case FileKind::completions: return open_completions(train, val);
      case FileKind::text: break;
    }
    return open_text(train, val);
  }

  // All of the files, in order.
  std::shared_ptr<const DataSource> open_all(const char* key, const std::string& pattern) {
    const std::vector<std::string> paths = find_files(key, pattern);
    std::shared_ptr<const DataSource> source;
    switch (kind_of(key, paths)) {
      case FileKind::shards: {
        Shards shards = read_shards(key, paths, 1);
        source = std::make_shared<TokenShards>(std::move(shards.used), plan_.block_size, 1);
        break;
      }
      case FileKind::completions: {
        Completions completions;
        for (const std::string& path : paths) completions.add(path, *stored_tokenizer_);
        source = completion_data(key, std::move(completions), 1);
        break;
      }
      case FileKind::text: {
        std::vector<TextRange> ranges;
        for (const std::string& path : paths) {
          const std::shared_ptr<const TokenFile> file = open_text_file(path, *stored_tokenizer_);
          ranges.push_back({file, 0, file->tokens()});
        }
        source = std::make_shared<TextData>(std::move(ranges), plan_.block_size, 1, seed());
        break;
      }
    }
    require(source->sequential_rows() > 0, key, ": ", pattern, " holds fewer than the ", plan_.block_size + 1,
            " tokens of a row (model.block_size + 1)");
    return source;
  }

 private:
  std::uint64_t seed() const { return static_cast<std::uint64_t>(config_.run.seed); }

  Sources open_synthetic() {
    Sources sources;
    sources.vocab_size = config_.model.vocab_size;
    require(sources.vocab_size > 0, "data.train: synthetic needs model.vocab_size above 0");
    sources.tokenizer = Tokenizer::ids(sources.vocab_size);
    sources.train = sources.validation = std::make_shared<SyntheticData>(sources.vocab_size, plan_.rows(), seed());
    sources.description = concat("synthetic data, ", with_commas(sources.vocab_size), " token ids");
    return sources;
  }

  struct Shards {
    std::vector<TokenShard> used;
    std::int64_t tokens = 0;
    bool wide = false;  // any of them has 32-bit ids
  };
  Shards read_shards(const char* key, const std::vector<std::string>& paths, std::int64_t rows) {
    Shards shards;
    for (const std::string& path : paths) {
      const TokenShard shard = read_shard_header(path);
      shards.wide = shards.wide || shard.bytes_per_token > 2;
      if (shard_batches(shard.tokens, rows * plan_.block_size) > 0) {
        shards.used.push_back(shard);
        shards.tokens += shard.tokens;
      } else {
        warnings_.push_back(concat(path, ": skipped, its ", counted(shard.tokens, "token"),
                                   shard.tokens == 1 ? " is" : " are", " fewer than the ",
                                   with_commas(rows * plan_.block_size + 1), " of a ", rows > 1 ? "step" : "row"));
      }
    }
    require(!shards.used.empty(), key, ": none of the ", paths.size(), " token shards holds the ",
            rows * plan_.block_size + 1, " tokens of a ", rows > 1 ? "step" : "row", " (", rows, " x ",
            plan_.block_size, " and one more), such as ", paths.front());
    return shards;
  }

  Sources open_shards(const std::vector<std::string>& train, const std::vector<std::string>& val) {
    Sources sources;
    const Shards training = read_shards("data.train", train, plan_.rows());
    Shards held_out;
    if (!val.empty()) held_out = read_shards("data.val", val, 1);
    sources.tokenizer = shard_tokenizer(train.front());
    if (sources.tokenizer.kind() == TokenizerKind::bpe) {
      sources.vocab_size = sources.tokenizer.vocab_size();
    } else {
      require(!(training.wide || held_out.wide) || config_.model.vocab_size > 0,
              "model.vocab_size: the token shards have 32-bit ids, whose vocabulary must be given");
      sources.vocab_size = config_.model.vocab_size > 0 ? config_.model.vocab_size : gpt2_vocab_size;
      sources.tokenizer = Tokenizer::ids(sources.vocab_size);
    }
    sources.train = std::make_shared<TokenShards>(training.used, plan_.block_size, plan_.rows());
    if (!val.empty()) sources.validation = std::make_shared<TokenShards>(held_out.used, plan_.block_size, plan_.rows());
    const auto used = static_cast<std::int64_t>(training.used.size());
    sources.description = concat(config_.data.train, ": ", counted(used, "token shard"), ", ",
                                 counted(training.tokens, "token"), ", ", with_commas(held_out.tokens), " held out",
                                 sources.tokenizer.kind() == TokenizerKind::bpe ? shard_tokenizer_place() : "");
    return sources;
  }

  // The run's, the configuration's, or what `greyhound tokenize` wrote beside the shards; bare ids when there is none.
  Tokenizer shard_tokenizer(const std::string& shard) {
    if (stored_tokenizer_ != nullptr) return *stored_tokenizer_;
    if (config_.data.tokenizer != "byte" && config_.data.tokenizer != "char") return configured_bpe();
    const std::string beside = (std::filesystem::path(shard).parent_path() / "tokenizer.json").string();
    std::error_code ignored;
    if (!std::filesystem::exists(beside, ignored)) return Tokenizer::ids(1);
    try {
      return Tokenizer::bpe(BpeVocabulary::load(beside));
    } catch (const Error& error) {
      warnings_.push_back(concat("the tokenizer beside the shards is not used: ", error.what()));
      return Tokenizer::ids(1);
    }
  }

  // For the description of the data.
  std::string shard_tokenizer_place() const {
    if (stored_tokenizer_ != nullptr) return ", with the run's tokenizer";
    const std::string& configured = config_.data.tokenizer;
    return configured == "byte" || configured == "char" ? ", with their tokenizer" : ", tokenizer " + configured;
  }

  // Of text. `paths` hold the characters of a vocabulary of characters.
  Tokenizer text_tokenizer(const std::vector<std::string>& paths) {
    if (stored_tokenizer_ != nullptr) {
      require(stored_tokenizer_->kind() != TokenizerKind::ids, "data.train: ", paths.front(),
              " is text, but the run was trained on token ids");
      return *stored_tokenizer_;
    }
    if (config_.data.tokenizer == "byte") return Tokenizer::bytes();
    if (config_.data.tokenizer == "char") return Tokenizer::characters(collect_symbols(paths));
    return configured_bpe();
  }

  Tokenizer configured_bpe() {
    std::error_code ignored;
    require(std::filesystem::exists(config_.data.tokenizer, ignored),
            "data.tokenizer: expected byte, char, or the path of a BPE tokenizer (tokenizer.json, or a folder with "
            "vocab.json and merges.txt), got ",
            config_.data.tokenizer, ", which is no file or folder");
    return Tokenizer::bpe(BpeVocabulary::load(config_.data.tokenizer));
  }

  static std::shared_ptr<const TokenFile> open_text_file(const std::string& path, const Tokenizer& tokenizer) {
    if (tokenizer.kind() == TokenizerKind::bpe) return open_cached_tokens(path, tokenizer);
    require(!is_json_lines(path), path,
            ": lines of JSON with a text are documents for a BPE tokenizer (data.tokenizer)");
    return std::make_shared<const TextFile>(path, tokenizer);
  }

  Sources open_text(const std::vector<std::string>& train, const std::vector<std::string>& val) {
    Sources sources;
    std::vector<std::string> all = train;
    all.insert(all.end(), val.begin(), val.end());
    sources.tokenizer = text_tokenizer(all);
    sources.vocab_size = sources.tokenizer.vocab_size();

    std::vector<TextRange> training, held_out;
    for (const std::string& path : train) {
      const std::shared_ptr<const TokenFile> file = open_text_file(path, sources.tokenizer);
      const double fraction = val.empty() ? config_.data.val_fraction : 0;
      const auto kept = file->tokens() - static_cast<std::int64_t>(static_cast<double>(file->tokens()) * fraction);
      training.push_back({file, 0, kept});
      if (kept < file->tokens()) held_out.push_back({file, kept, file->tokens()});
    }
    for (const std::string& path : val) {
      const std::shared_ptr<const TokenFile> file = open_text_file(path, sources.tokenizer);
      held_out.push_back({file, 0, file->tokens()});
    }
    sources.description = concat(config_.data.train, ": text, ", counted(count(training), "training token"), ", ",
                                 with_commas(count(held_out)), " held out, ", describe(sources.tokenizer));
    sources.train = text_data("data.train", training);
    const auto validation = std::make_shared<TextData>(held_out, plan_.block_size, plan_.rows(), seed());
    if (validation->sequential_rows() > 0) {
      sources.validation = validation;
    } else {
      require(val.empty(), "data.val: ", config_.data.val, " holds fewer than the ", plan_.block_size + 1,
              " tokens of a row (model.block_size + 1)");
      if (config_.data.val_fraction > 0) {
        warnings_.push_back(concat("data.val_fraction ", config_.data.val_fraction, " holds out ",
                                   counted(count(held_out), "token"), ", fewer than the ", plan_.block_size + 1,
                                   " of a row"));
      }
    }
    return sources;
  }

  static std::string describe(const Tokenizer& tokenizer) {
    switch (tokenizer.kind()) {
      case TokenizerKind::byte: return concat(tokenizer.vocab_size(), " byte values");
      case TokenizerKind::character: return counted(tokenizer.vocab_size(), "character");
      case TokenizerKind::bpe: return counted(tokenizer.vocab_size(), "BPE token");
      case TokenizerKind::ids: break;
    }
    return counted(tokenizer.vocab_size(), "token id");
  }

  static std::int64_t count(const std::vector<TextRange>& ranges) {
    std::int64_t tokens = 0;
    for (const TextRange& range : ranges) tokens += range.end - range.begin;
    return tokens;
  }

  std::shared_ptr<const DataSource> text_data(const char* key, const std::vector<TextRange>& ranges) {
    auto data = std::make_shared<TextData>(ranges, plan_.block_size, plan_.rows(), seed());
    require(data->windows() > 0, key, ": ", ranges.front().file->path(), " has ", counted(count(ranges), "token"),
            " for training, fewer than the ", plan_.block_size + 1, " of a row (model.block_size + 1)");
    warn_of_few_rows(key, "the text has", data->windows());
    return data;
  }

  void warn_of_few_rows(const char* key, const char* what, std::int64_t rows) {
    if (rows >= plan_.rows() || config_.train.overfit_batch) return;
    warnings_.push_back(concat(key, ": ", what, " only ", counted(rows, "row"), " of ",
                               counted(plan_.block_size, "token"), ", a step takes ", plan_.rows(),
                               ": rows repeat within a step"));
  }

  Sources open_completions(const std::vector<std::string>& train, const std::vector<std::string>& val) {
    Sources sources;
    require(stored_tokenizer_ != nullptr || config_.data.tokenizer != "char",
            "data.tokenizer: char does not go with prompts and completions, expected byte or a BPE tokenizer");
    sources.tokenizer = text_tokenizer(train);
    sources.vocab_size = sources.tokenizer.vocab_size();
    Completions training, held_out;
    for (const std::string& path : train) {
      Completions file;
      file.add(path, sources.tokenizer);
      const auto examples = static_cast<double>(file.examples().size());
      const auto end = static_cast<std::size_t>(examples * (val.empty() ? config_.data.val_fraction : 0));
      held_out.append(file.split(file.examples().size() - end));
      training.append(file);
    }
    for (const std::string& path : val) held_out.add(path, sources.tokenizer);
    const auto data = completion_data("data.train", std::move(training), plan_.rows());
    warn_of_few_rows("data.train", "the examples fill", data->sequential_rows());
    sources.train = data;
    std::int64_t held_out_examples = 0;
    if (!held_out.examples().empty()) {
      const auto validation = completion_data("data.val", std::move(held_out), plan_.rows());
      held_out_examples = validation->examples();
      sources.validation = validation;
    }
    sources.description =
        concat(config_.data.train, ": prompts and completions, ", counted(data->examples(), "example"),
               " for training, ", with_commas(held_out_examples), " held out, ", describe(sources.tokenizer));
    return sources;
  }

  std::shared_ptr<const CompletionData> completion_data(const char* key, Completions completions, std::int64_t rows) {
    auto data = std::make_shared<CompletionData>(std::move(completions), plan_.block_size, rows, seed());
    if (data->cut() > 0) {
      warnings_.push_back(concat(key, ": ", with_commas(data->cut()), " of ", counted(data->examples(), "example"),
                                 data->cut() == 1 ? " is" : " are", " longer than a row of ", plan_.block_size + 1,
                                 " tokens and ", data->cut() == 1 ? "is" : "are", " cut"));
    }
    if (data->left_out() > 0) {
      warnings_.push_back(concat(key, ": ", counted(data->left_out(), "example"),
                                 data->left_out() == 1 ? " is left out: its prompt fills a row of "
                                                       : " are left out: their prompts fill a row of ",
                                 plan_.block_size + 1, " tokens"));
    }
    require(data->sequential_rows() > 0, key, ": no example fits into a row of ", plan_.block_size + 1,
            " tokens (model.block_size + 1)");
    return data;
  }

  const Config& config_;
  const BatchPlan& plan_;
  const Tokenizer* stored_tokenizer_;
  std::vector<std::string>& warnings_;
};

}  // namespace

RunData open_data(const Config& config, const BatchPlan& plan, std::int64_t rank, const Tokenizer* tokenizer) {
  RunData data;
  const Sources sources = Opener(config, plan, tokenizer, data.warnings).open();
  data.tokenizer = sources.tokenizer;
  data.description = sources.description;
  data.vocab_size = config.model.vocab_size > 0 ? config.model.vocab_size : sources.vocab_size;
  // The vocabulary that was asked for is then the model's, whatever the configuration says.
  require(data.vocab_size >= sources.vocab_size || config.model.init_from.empty(), "model.init_from: the model of ",
          config.model.init_from, " has ", counted(config.model.vocab_size, "token"), ", the tokenizer of ",
          config.data.train, " ", with_commas(sources.vocab_size), "; expected the model's own (data.tokenizer)");
  require(data.vocab_size >= sources.vocab_size, "model.vocab_size ", config.model.vocab_size, " is less than the ",
          sources.vocab_size, " tokens of ", config.data.train, "; 0 takes the data's");
  const std::int64_t ignore_token = config.data.ignore_token;
  require(ignore_token < data.vocab_size, "data.ignore_token ", ignore_token, " is not a token id below ",
          data.vocab_size);
  data.train =
      std::make_unique<Loader>(sources.train, plan, rank, data.vocab_size, ignore_token, config.train.overfit_batch);
  if (sources.validation) {
    data.validation =
        std::make_unique<Evaluator>(sources.validation, config.eval.batches, config.train.micro_batch, plan.micro_batch,
                                    plan.block_size, rank, plan.ranks, data.vocab_size, ignore_token);
  } else if (config.eval.every > 0) {
    data.warnings.push_back("no evaluation: no data is held out for it (data.val, data.val_fraction)");
  }
  return data;
}

RunData open_evaluation(const Config& config, const BatchPlan& plan, const std::string& data_path,
                        const Tokenizer& tokenizer) {
  RunData data;
  data.tokenizer = tokenizer;
  data.vocab_size = config.model.vocab_size;
  const std::shared_ptr<const DataSource> source =
      Opener(config, plan, &tokenizer, data.warnings).open_all("--data", data_path);
  data.validation = std::make_unique<Evaluator>(source, config.eval.batches, config.train.micro_batch, plan.micro_batch,
                                                plan.block_size, 0, 1, data.vocab_size, config.data.ignore_token);
  return data;
}

}  // namespace greyhound
