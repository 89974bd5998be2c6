#include <greyhound/core/error.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/console.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/input_file.h>
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

// Where the new files are made: --out holds the old ones until all of the new ones are whole.
std::string work_folder(const std::string& out) { return out + "/.tokenize.tmp"; }

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    throw_runtime("--out ", folder, ": the folder cannot be made: ", error.message());
}

bool holds_tokenizer(const std::string& path, const Tokenizer& tokenizer) {
  try {
    const Tokenizer found = Tokenizer::load(path);
    return found.vocabulary() && found.vocabulary()->to_tokenizer_json() == tokenizer.vocabulary()->to_tokenizer_json();
  } catch (const Error&) {
    return false;
  }
}

// What is in the folder already is kept without --overwrite; the same tokenizer is kept in any case.
bool check_folder(const std::string& folder, const Tokenizer& tokenizer, bool overwrite) {
  const std::vector<std::string> shards = existing_shards(folder);
  require(overwrite || shards.empty(), "--out ", folder, ": already holds token shards (",
          shards.empty() ? "" : fs::path(shards.front()).filename().string(),
          "); choose another folder, or replace them with --overwrite");
  const std::string path = folder + "/tokenizer.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return true;
  if (holds_tokenizer(path, tokenizer)) return false;
  require(overwrite, "--out ", folder,
          ": already holds another tokenizer.json; choose another folder, or replace it with --overwrite");
  return true;
}

// The new files come, and old shards that they do not replace go. Names are all that is left to change by then.
void publish(const std::string& work, const std::string& folder) {
  const std::vector<std::string> old = existing_shards(folder);
  const std::vector<fs::path> made(fs::directory_iterator(work), fs::directory_iterator{});
  for (const fs::path& path : made) fs::rename(path, fs::path(folder) / path.filename());
  for (const fs::path path : old) {
    const auto same_name = [&](const fs::path& other) { return other.filename() == path.filename(); };
    if (std::none_of(made.begin(), made.end(), same_name)) fs::remove(path);
  }
}

// Removes the folder when it goes, whatever is in it by then.
struct TemporaryFolder {
  explicit TemporaryFolder(const std::string& name) : path(name) {
    std::error_code error;
    fs::remove_all(path, error);  // of a call that crashed
    if (fs::create_directory(path, error); error) throw_runtime("cannot make ", path, ": ", error.message());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string path;
};

void check_special_tokens(const BpeVocabulary& vocabulary) {
  for (const std::int32_t id : vocabulary.special_tokens()) {
    require(vocabulary.token(id).find_first_of(" \t\r\n") == std::string::npos, "--special-tokens: the special token '",
            vocabulary.token(id), "' holds white space, at which long texts are cut");
  }
}

std::string count_of(const ShardWriter& writer) {
  const auto files = static_cast<std::int64_t>(writer.paths().size());
  return concat(with_commas(writer.tokens()), " tokens in ", counted(files, "shard"));
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
  make_folder(options.out);
  const FolderLock lock(options.out);
  const bool save_tokenizer = check_folder(options.out, tokenizer, options.overwrite);
  const TemporaryFolder work(work_folder(options.out));

  const int token_bytes = tokenizer.vocab_size() <= 65536 ? 2 : 4;
  ShardWriter train(work.path, "train", token_bytes, options.shard_tokens);
  ShardWriter val(work.path, "val", token_bytes, options.shard_tokens);
  const Clock::time_point start = Clock::now();
  {
    ProgressBar bar(bytes);
    TokenizeFilesOptions how;
    how.val_fraction = options.val_fraction;
    how.special_tokens = options.special_tokens;
    how.threads = static_cast<int>(options.threads);
    const auto sink = [&](bool held_out, std::span<const std::int32_t> tokens) {
      (held_out ? val : train).append(tokens);
    };
    how.poll = [&] {
      if (stop.requested()) throw_runtime("stopped by ", stop.signal_name(), "; nothing was written");
    };
    tokenize_files(tokenizer, paths, how, sink, [&](std::int64_t done) {
      bar.show(done);
      how.poll();
    });
    train.finish();
    val.finish();
    require(train.tokens() > 0, paths.front(), paths.size() > 1 ? " and the others are" : ": is", " empty");
    if (save_tokenizer) tokenizer.save(work.path + "/tokenizer.json");
    publish(work.path, options.out);
  }
  const double time = seconds_since(start);
  const bool none_held_out = options.val_fraction > 0 && val.tokens() == 0;
  spdlog::info("{}: {} for training, {} held out{}, and tokenizer.json", options.out, count_of(train), count_of(val),
               none_held_out ? " (no line or word starts in the part of a file that --val-fraction holds out)" : "");
  spdlog::info("{} bytes in {:.1f} s, {:.0f} MB/s", with_commas(bytes), time, static_cast<double>(bytes) / time / 1e6);
  const std::string folder = (fs::path(options.out) / "").string();
  spdlog::info("train on them: data.train={}train_*.bin{}", folder,
               val.tokens() > 0 ? " data.val=" + folder + "val_*.bin" : "");
  require_output_written();
}

}  // namespace greyhound
