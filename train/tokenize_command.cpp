#include <greyhound/core/error.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/console.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/shard_writer.h>
#include <greyhound/train/signals.h>
#include <greyhound/train/tokenize_files.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

namespace greyhound {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One line on stderr that is written over, when it is a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::int64_t bytes) : bytes_(bytes), shown_(::isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void show(std::int64_t done) {
    if (!shown_ || (seconds_since(last_) < 0.1 && done < bytes_)) return;
    last_ = Clock::now();
    constexpr int width = 30;
    const double part = static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(bytes_, 1));
    const int full = static_cast<int>(part * width);
    const double time = seconds_since(start_);
    std::fprintf(stderr, "\r[%s%s] %3.0f %%  %.0f MB/s  %s left\033[K",
                 std::string(static_cast<std::size_t>(full), '=').c_str(),
                 std::string(static_cast<std::size_t>(width - full), ' ').c_str(), 100 * part,
                 static_cast<double>(done) / time / 1e6, duration(time / part - time).c_str());
  }

 private:
  std::int64_t bytes_;
  bool shown_;
  Clock::time_point start_ = Clock::now(), last_{};
};

std::vector<std::string> find_all(const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> found = find_files("tokenize", pattern);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

// Shards of an earlier call: mixed with new ones they would be other data than anybody asked for.
std::vector<std::string> existing_shards(const std::string& folder) {
  std::vector<std::string> shards;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.rfind("train_", 0) == 0 || name.rfind("val_", 0) == 0;
    if (ours && entry.path().extension() == ".bin") shards.push_back(entry.path().string());
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

void prepare_folder(const std::string& folder, bool overwrite) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    throw_runtime("--out ", folder, ": the folder cannot be made: ", error.message());
  for (const std::string& path : existing_shards(folder)) {
    require(overwrite, "--out ", folder, ": already holds token shards (", fs::path(path).filename().string(),
            "); choose another folder, or replace them with --overwrite");
    fs::remove(path);
  }
}

void check_special_tokens(const BpeVocabulary& vocabulary) {
  for (const std::int32_t id : vocabulary.special_tokens()) {
    require(vocabulary.token(id).find_first_of(" \t\r\n") == std::string::npos, "--special-tokens: the special token '",
            vocabulary.token(id), "' holds white space, at which long texts are cut");
  }
}

std::string count_of(const ShardWriter& writer) {
  const std::size_t files = writer.paths().size();
  return concat(with_commas(writer.tokens()), " tokens in ", files, files == 1 ? " shard" : " shards");
}

}  // namespace

void tokenize_command(const TokenizeOptions& options) {
  const StopRequest stop;
  set_up_console();
  const std::vector<std::string> paths = find_all(options.files);
  const Tokenizer tokenizer = Tokenizer::bpe(BpeVocabulary::load(options.tokenizer));
  if (options.special_tokens) check_special_tokens(*tokenizer.vocabulary());
  if (tokenizer.end_of_text() < 0)
    spdlog::warn("{} has no <|endoftext|>: nothing separates documents", options.tokenizer);
  std::int64_t bytes = 0;
  for (const std::string& path : paths) bytes += static_cast<std::int64_t>(fs::file_size(path));
  prepare_folder(options.out, options.overwrite);

  const int token_bytes = tokenizer.vocab_size() <= 65536 ? 2 : 4;
  ShardWriter train(options.out, "train", token_bytes, options.shard_tokens);
  ShardWriter val(options.out, "val", token_bytes, options.shard_tokens);
  const Clock::time_point start = Clock::now();
  try {
    ProgressBar bar(bytes);
    TokenizeFilesOptions how;
    how.val_fraction = options.val_fraction;
    how.special_tokens = options.special_tokens;
    how.threads = static_cast<int>(options.threads);
    const auto sink = [&](bool held_out, std::span<const std::int32_t> tokens) {
      (held_out ? val : train).append(tokens);
    };
    tokenize_files(tokenizer, paths, how, sink, [&](std::int64_t done) {
      bar.show(done);
      if (stop.requested()) throw_runtime("stopped by ", stop.signal_name(), "; nothing was written");
    });
    train.finish();
    val.finish();
    require(train.tokens() > 0, paths.front(), paths.size() > 1 ? " and the others are" : ": is", " empty");
    tokenizer.save(options.out + "/tokenizer.json");
  } catch (...) {
    std::error_code ignored;
    for (const ShardWriter* writer : {&train, &val}) {
      for (const std::string& path : writer->paths()) fs::remove(path, ignored);  // half of the data is none
    }
    throw;
  }
  const double time = seconds_since(start);
  spdlog::info("{}: {} for training, {} held out, and tokenizer.json", options.out, count_of(train), count_of(val));
  spdlog::info("{} bytes in {:.1f} s, {:.0f} MB/s", with_commas(bytes), time, static_cast<double>(bytes) / time / 1e6);
  const std::string folder = (fs::path(options.out) / "").string();
  spdlog::info("train on them: data.train={}train_*.bin{}", folder,
               val.tokens() > 0 ? " data.val=" + folder + "val_*.bin" : "");
  require_output_written();
}

}  // namespace greyhound
