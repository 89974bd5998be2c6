#include <greyhound/core/error.h>
#include <greyhound/train/bpe_split.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/lines.h>
#include <greyhound/train/text_file_check.h>
#include <greyhound/train/tokenize_files.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace greyhound {
namespace {

constexpr std::uint64_t chunk_bytes = 1 << 20;
constexpr std::uint64_t block_bytes = 1 << 16;  // that are looked through for a place to cut

// A part of a file that is encoded by itself: whole lines of JSON, or text between two cuts that words do not cross.
struct Chunk {
  std::shared_ptr<const InputFile> file;
  std::uint64_t begin = 0;
  std::string text;
  bool json = false;
  bool starts_document = false;  // of text
  bool held_out = false;
};

// The start of the first line at or after `from`; text.size() when there is none.
std::size_t line_start(std::string_view text, std::size_t from) {
  if (from == 0) return 0;
  const std::size_t newline = text.find('\n', from - 1);
  return newline == std::string_view::npos ? text.size() : newline + 1;
}

class Chunks {
 public:
  Chunks(const std::vector<std::string>& paths, const TokenizeFilesOptions& options)
      : paths_(paths), options_(options) {}

  // The next chunk, until there is none.
  bool next(Chunk& chunk) {
    while (!file_ || begin_ == file_->size()) {
      if (file_) file_->check_size();  // one that grew is not done
      if (next_path_ == paths_.size()) return false;
      open(paths_[next_path_++]);
    }
    file_->check_size();
    const bool held_out = begin_ >= split_;
    // Text of this part of the file alone: where it ends, a document ends.
    const std::uint64_t limit = held_out ? file_->size() : split_, from = begin_ + chunk_bytes;
    const std::uint64_t end = from >= limit ? limit
                              : json_       ? find(line_start, from, limit)
                                            : find(bpe_cut, from, limit);
    chunk = {file_, begin_, file_->read(begin_, end), json_, begin_ == 0 || begin_ == split_, held_out};
    begin_ = end;
    return true;
  }

 private:
  void open(const std::string& path) {
    file_ = std::make_shared<const InputFile>(path);
    json_ = is_json_lines(path);
    begin_ = 0;
    const std::uint64_t size = file_->size();
    const auto held_out = static_cast<std::uint64_t>(static_cast<double>(size) * options_.val_fraction);
    split_ = held_out == 0 ? size : find(line_start, size - held_out, size);
    if (split_ == size && held_out > 0 && !json_) split_ = find(bpe_cut, size - held_out, size);
  }

  // The place in the file that line_start or bpe_cut finds at or after `from`, `limit` when there is none. Both look
  // back a few bytes at most.
  std::uint64_t find(std::size_t (*cut)(std::string_view text, std::size_t from), std::uint64_t from,
                     std::uint64_t limit) {
    constexpr std::uint64_t back = 8;
    for (;;) {
      if (options_.poll) options_.poll();
      const std::uint64_t base = from - std::min(from, back), end = std::min(limit, from + block_bytes);
      const std::string text = file_->read(base, end);
      const std::uint64_t found = base + cut(text, from - base);
      if (found < end || end == limit) return found;
      from = end;
    }
  }

  const std::vector<std::string>& paths_;
  const TokenizeFilesOptions& options_;
  std::size_t next_path_ = 0;
  std::shared_ptr<const InputFile> file_;
  bool json_ = false;
  std::uint64_t begin_ = 0, split_ = 0;
};

// Text to tokens, with special tokens where they are asked for: the first one in the text, of several there the
// longest.
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const TokenizeFilesOptions& options)
      : vocabulary_(*tokenizer.vocabulary()),
        encoder_(tokenizer.merges(), options.poll),
        separator_(options.separate ? tokenizer.end_of_text() : -1),
        special_tokens_(options.special_tokens) {}

  void encode(const Chunk& chunk, std::vector<std::int32_t>& tokens) {
    const std::string_view text = chunk.text;
    if (!chunk.json) {
      encode_text(text, chunk.starts_document, tokens);
      return;
    }
    for_each_line(text, [&](std::string_view line, std::size_t begin, std::int64_t) {
      encode_text(json_line(line, [&] { return position(chunk, begin); }), true, tokens);
      return true;
    });
  }

 private:
  static std::string position(const Chunk& chunk, std::size_t offset) {
    std::int64_t line = 1;
    const std::uint64_t end = chunk.begin + offset;
    for (std::uint64_t at = 0; at < end; at += chunk_bytes) {
      const std::string before = chunk.file->read(at, std::min(end, at + chunk_bytes));
      line += std::count(before.begin(), before.end(), '\n');
    }
    return concat(chunk.file->path(), ": line ", line);
  }

  // Counting lines takes long: only where something is wrong.
  template <class Where>
  static std::string json_line(std::string_view line, Where&& where) {
    try {
      return json_text(line, "text", "");
    } catch (const Error&) {
      return json_text(line, "text", where());
    }
  }

  void encode_text(std::string_view text, bool starts_document, std::vector<std::int32_t>& tokens) {
    if (starts_document && separator_ >= 0) tokens.push_back(separator_);
    while (special_tokens_ && !text.empty()) {
      std::size_t first = text.npos;
      std::int32_t found = -1;
      for (const std::int32_t id : vocabulary_.special_tokens()) {
        const std::string& token = vocabulary_.token(id);
        const std::size_t at = text.substr(0, first == text.npos ? first : first + token.size()).find(token);
        if (at == text.npos || at > first) continue;
        if (at == first && token.size() <= vocabulary_.token(found).size()) continue;
        first = at;
        found = id;
      }
      if (found < 0) break;
      encoder_.encode(text.substr(0, first), tokens);
      tokens.push_back(found);
      text = text.substr(first + vocabulary_.token(found).size());
    }
    encoder_.encode(text, tokens);
  }

  const BpeVocabulary& vocabulary_;
  BpeEncoder encoder_;
  std::int32_t separator_;
  bool special_tokens_;
};

// Threads take chunks in turn and hand over their tokens in the same turn: as many chunks as threads are in memory.
class Pipeline {
 public:
  using Sink = std::function<void(bool, std::span<const std::int32_t>)>;
  using Progress = std::function<void(std::int64_t)>;

  Pipeline(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TokenizeFilesOptions& options,
           const Sink& sink, const Progress& progress)
      : tokenizer_(tokenizer), options_(options), sink_(sink), progress_(progress), chunks_(paths, options) {}

  void run(int threads) {
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    for (std::thread& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    std::uint64_t number = 0;
    bool taken = false;
    try {
      DocumentEncoder encoder(tokenizer_, options_);
      Chunk chunk;
      std::vector<std::int32_t> tokens;
      while ((taken = take(chunk, number))) {
        tokens.clear();
        encoder.encode(chunk, tokens);
        if (!wait_for_turn(number)) return;
        sink_(chunk.held_out, tokens);
        done_ += static_cast<std::int64_t>(chunk.text.size());
        if (progress_) progress_(done_);
        end_turn();
        taken = false;  // take() may throw
      }
    } catch (...) {
      fail(taken, number, std::current_exception());
    }
  }

  bool take(Chunk& chunk, std::uint64_t& number) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    closed_ = true;  // unless the next line comes back
    if (!chunks_.next(chunk)) return false;
    closed_ = false;
    number = taken_++;
    return true;
  }
  // Failures take turns as well, so that the first one in the files is told of.
  void fail(bool taken, std::uint64_t number, std::exception_ptr failure) {
    std::unique_lock lock(mutex_);
    closed_ = true;
    const std::uint64_t turn = taken ? number : taken_;
    changed_.wait(lock, [&] { return turn_ == turn || failure_; });
    if (!failure_) failure_ = failure;
    changed_.notify_all();
  }
  bool wait_for_turn(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == number || failure_; });
    return !failure_;
  }
  void end_turn() {
    const std::lock_guard lock(mutex_);
    ++turn_;
    changed_.notify_all();
  }

  const Tokenizer& tokenizer_;
  const TokenizeFilesOptions& options_;
  const Sink& sink_;
  const Progress& progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Chunks chunks_;
  std::uint64_t taken_ = 0, turn_ = 0;
  std::int64_t done_ = 0;  // touched in turn
  bool closed_ = false;    // no chunk is taken any more
  std::exception_ptr failure_;
};

}  // namespace

bool is_json_lines(const std::string& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jsonl" || extension == ".ndjson";
}

std::string json_text(std::string_view line, const char* key, const std::string& where) {
  try {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.is_object() && json.contains(key) && json[key].is_string()) return json[key];
  } catch (const nlohmann::json::exception& error) {
    throw_runtime(where, ": expected a line of JSON: ", error.what());
  }
  throw_runtime(where, ": expected an object with a string \"", key, "\"");
}

void tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& paths,
                    const TokenizeFilesOptions& options,
                    const std::function<void(bool, std::span<const std::int32_t>)>& sink,
                    const std::function<void(std::int64_t)>& progress) {
  require(tokenizer.kind() == TokenizerKind::bpe, "tokenize_files: expected a BPE tokenizer");
  for (const std::string& path : paths) {
    refuse_binary(path);
    refuse_misnamed_json_lines(path);
  }
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Pipeline(tokenizer, paths, options, sink, progress).run(options.threads > 0 ? options.threads : cores);
}

}  // namespace greyhound
