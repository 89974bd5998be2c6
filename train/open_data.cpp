// From data.train and data.val to a loader: finding files, telling text from shards, holding out, choosing the
// vocabulary.
#include <greyhound/core/error.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/synthetic_data.h>
#include <greyhound/train/text_data.h>
#include <greyhound/train/token_shards.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace greyhound {
namespace {

constexpr std::int64_t gpt2_vocab_size =
    50257;  // what token shards of 16-bit ids hold unless the config says otherwise

struct Sources {
  std::shared_ptr<const DataSource> train, validation;  // validation may be nullptr
  Tokenizer tokenizer;
  std::int64_t vocab_size = 0;  // the data's own
  std::string description;
};

// All files of a split are of one kind.
bool are_token_shards(const char* key, const std::vector<std::string>& paths) {
  const auto is_shard = [](const std::string& path) {
    return std::filesystem::path(path).extension() == ".bin" || looks_like_token_shard(path);
  };
  const bool first = is_shard(paths.front());
  for (const std::string& path : paths) {
    require(is_shard(path) == first, key, ": ", first ? path : paths.front(), " is text, but ",
            first ? paths.front() : path, " is a token shard");
  }
  return first;
}

class Opener {
 public:
  Opener(const Config& config, const BatchPlan& plan, const Tokenizer* tokenizer, std::vector<std::string>& warnings)
      : config_(config), plan_(plan), stored_tokenizer_(tokenizer), warnings_(warnings) {}

  Sources open() {
    if (config_.data.train == "synthetic") return open_synthetic();
    const std::vector<std::string> train = find_files("data.train", config_.data.train);
    const std::vector<std::string> val =
        config_.data.val.empty() ? std::vector<std::string>() : find_files("data.val", config_.data.val);
    const bool shards = are_token_shards("data.train", train);
    require(val.empty() || are_token_shards("data.val", val) == shards, "data.train and data.val: ", train.front(),
            " is ", shards ? "a token shard" : "text", ", but ", val.empty() ? "" : val.front(), " is ",
            shards ? "text" : "a token shard");
    return shards ? open_shards(train, val) : open_text(train, val);
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

  Sources open_shards(const std::vector<std::string>& train, const std::vector<std::string>& val) {
    Sources sources;
    bool wide = false;
    std::int64_t tokens = 0, held_out = 0;
    std::size_t used = 0;  // of the training shards
    const auto read = [&](const char* key, const std::vector<std::string>& paths, std::int64_t rows,
                          std::int64_t& total) {
      std::vector<TokenShard> shards;
      for (const std::string& path : paths) {
        const TokenShard shard = read_shard_header(path);
        wide = wide || shard.bytes_per_token > 2;
        if (shard_batches(shard.tokens, rows * plan_.block_size) > 0) {
          shards.push_back(shard);
          total += shard.tokens;
          used += &total == &tokens ? 1 : 0;
        } else {
          warnings_.push_back(concat(path, ": skipped, its ", with_commas(shard.tokens), " tokens are fewer than the ",
                                     with_commas(rows * plan_.block_size + 1), " of a ", rows > 1 ? "step" : "row"));
        }
      }
      require(!shards.empty(), key, ": none of the ", paths.size(), " token shards holds the ",
              rows * plan_.block_size + 1, " tokens of a ", rows > 1 ? "step" : "row", " (", rows, " x ",
              plan_.block_size, " and one more), such as ", paths.front());
      return std::make_shared<TokenShards>(std::move(shards), plan_.block_size, plan_.rows());
    };
    sources.train = read("data.train", train, plan_.rows(), tokens);
    if (!val.empty()) sources.validation = read("data.val", val, 1, held_out);
    require(!wide || config_.model.vocab_size > 0,
            "model.vocab_size: the token shards have 32-bit ids, whose vocabulary must be given");
    sources.vocab_size = config_.model.vocab_size > 0 ? config_.model.vocab_size : gpt2_vocab_size;
    sources.tokenizer = Tokenizer::ids(sources.vocab_size);
    sources.description = concat(config_.data.train, ": ", used, used == 1 ? " token shard, " : " token shards, ",
                                 with_commas(tokens), " tokens, ", with_commas(held_out), " held out");
    return sources;
  }

  Sources open_text(const std::vector<std::string>& train, const std::vector<std::string>& val) {
    Sources sources;
    if (stored_tokenizer_ != nullptr) {
      sources.tokenizer = *stored_tokenizer_;
      require(sources.tokenizer.kind() != TokenizerKind::ids, "data.train: ", train.front(),
              " is text, but the run was trained on token ids");
    } else if (config_.data.tokenizer == TokenizerKind::character) {
      std::vector<std::string> all = train;
      all.insert(all.end(), val.begin(), val.end());
      sources.tokenizer = Tokenizer::characters(collect_symbols(all));
    }
    sources.vocab_size = sources.tokenizer.vocab_size();

    std::vector<TextRange> training, held_out;
    for (const std::string& path : train) {
      const auto file = std::make_shared<const TextFile>(path, sources.tokenizer);
      const double fraction = val.empty() ? config_.data.val_fraction : 0;
      const auto kept = file->tokens() - static_cast<std::int64_t>(static_cast<double>(file->tokens()) * fraction);
      training.push_back({file, 0, kept});
      if (kept < file->tokens()) held_out.push_back({file, kept, file->tokens()});
    }
    for (const std::string& path : val) {
      const auto file = std::make_shared<const TextFile>(path, sources.tokenizer);
      held_out.push_back({file, 0, file->tokens()});
    }
    sources.description = concat(config_.data.train, ": text, ", with_commas(count(training)), " training tokens, ",
                                 with_commas(count(held_out)), " held out, ", sources.vocab_size,
                                 sources.tokenizer.kind() == TokenizerKind::byte ? " byte values" : " characters");
    sources.train = text_data("data.train", training);
    const auto validation = std::make_shared<TextData>(held_out, plan_.block_size, plan_.rows(), seed());
    if (validation->sequential_rows() > 0) {
      sources.validation = validation;
    } else {
      require(val.empty(), "data.val: ", config_.data.val, " holds fewer than the ", plan_.block_size + 1,
              " tokens of a row (model.block_size + 1)");
      if (config_.data.val_fraction > 0) {
        warnings_.push_back(concat("data.val_fraction ", config_.data.val_fraction, " holds out ", count(held_out),
                                   " tokens, fewer than the ", plan_.block_size + 1, " of a row"));
      }
    }
    return sources;
  }

  static std::int64_t count(const std::vector<TextRange>& ranges) {
    std::int64_t tokens = 0;
    for (const TextRange& range : ranges) tokens += range.end - range.begin;
    return tokens;
  }

  std::shared_ptr<const DataSource> text_data(const char* key, const std::vector<TextRange>& ranges) {
    auto data = std::make_shared<TextData>(ranges, plan_.block_size, plan_.rows(), seed());
    require(data->windows() > 0, key, ": ", ranges.front().file->path(), " has ", count(ranges),
            " tokens for training, fewer than the ", plan_.block_size + 1, " of a row (model.block_size + 1)");
    if (data->windows() < plan_.rows() && !config_.train.overfit_batch) {
      warnings_.push_back(concat(key, ": the text has only ", data->windows(), " rows of ", plan_.block_size,
                                 " tokens, a step takes ", plan_.rows(), ": rows repeat within a step"));
    }
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

}  // namespace greyhound
