// Byte-level BPE against the ids of OpenAI's and Hugging Face's tokenizers.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <doctest/doctest.h>
#include <greyhound/train/bpe_encoder.h>
#include <greyhound/train/bpe_split.h>
#include <greyhound/train/tokenizer.h>
#include <greyhound/train/utf8.h>
#include <pcre2.h>
#include <nlohmann/json.hpp>

#include "test_files.h"

#include <cstdlib>
#include <random>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

using Ids = std::vector<std::int32_t>;

const std::string data_folder = GREYHOUND_SOURCE_DIR "/tests/train/data";

const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::bpe(BpeVocabulary::load(data_folder + "/bpe_tokenizer.json"));
  return tokenizer;
}

// GPT-2's vocabulary is nobody's to copy here: tests that need it look for one, and say when there is none.
std::string gpt2_folder() {
  const char* given = std::getenv("GREYHOUND_GPT2_TOKENIZER");
  const std::string folder = given != nullptr ? given : GREYHOUND_SOURCE_DIR "/../shared/data/gpt2";
  if (std::filesystem::exists(folder + "/vocab.json")) return folder;
  MESSAGE("skipped: no vocab.json and merges.txt of GPT-2 in GREYHOUND_GPT2_TOKENIZER");
  return "";
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

void check_stored_texts(const Tokenizer& tokenizer, const char* column) {
  const nlohmann::json texts = nlohmann::json::parse(read_file(data_folder + "/bpe_texts.json"));
  REQUIRE(texts.size() >= 30);
  for (const nlohmann::json& entry : texts) {
    CAPTURE(entry["name"].get<std::string>());
    const std::string text = repeated(from_hex(entry["hex"]), entry["times"]);
    const Ids ids = tokenizer.encode(text);
    CHECK(ids == entry[column].get<Ids>());
    CHECK(tokenizer.decode(ids) == text);
  }
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = bpe_word_end(text, begin);
    REQUIRE(end > begin);
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

// GPT-2's pattern itself, but for \s, which PCRE2 takes to hold U+180E. Valid UTF-8 only.
std::vector<std::string> words_by_pattern(const std::string& text) {
  static const char* pattern =
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{Z}\\x{9}-\\x{d}\\x{85}\\p{L}\\p{N}]+"
      "|[\\p{Z}\\x{9}-\\x{d}\\x{85}]+(?![^\\p{Z}\\x{9}-\\x{d}\\x{85}])|[\\p{Z}\\x{9}-\\x{d}\\x{85}]+";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  REQUIRE(code != nullptr);
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
  std::vector<std::string> words;
  std::size_t begin = 0;
  const auto find = [&] {  // UTF-8 is checked once: a check goes through the whole text
    const std::uint32_t options = begin == 0 ? 0 : PCRE2_NO_UTF_CHECK;
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin, options, match, nullptr);
  };
  while (begin < text.size() && find() > 0) {
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
    REQUIRE(range[0] == begin);
    words.push_back(text.substr(range[0], range[1] - range[0]));
    begin = range[1];
  }
  CHECK(begin == text.size());
  pcre2_match_data_free(match);
  pcre2_code_free(code);
  return words;
}

using Random = std::mt19937_64;

// Text in which every class and every border between classes comes up often.
std::string random_text(Random& random, std::size_t symbols) {
  static const std::vector<std::u32string> pools = {U"abcdefgh ABC",
                                                    U"'",
                                                    U"strvmedl '",
                                                    U" \n\t\r\v\f\u0085\u00A0\u2003\u3000\u2028\u180E\u200B",
                                                    U"  \n",
                                                    U"0123456789²½Ⅷ٣",
                                                    U"!?.,;-_()<>|\x01\x1C\x1F\x7F",
                                                    U"éßñ\u0301\u0300\u200D",
                                                    U"日本語漢字かな한국어",
                                                    U"😀🎉👩🏽🇩🇪",
                                                    U"אבגعربيहिन्दी"};
  std::string text;
  while (symbols > 0) {
    const std::u32string& pool = pools[random() % pools.size()];
    for (std::size_t run = 1 + random() % 5; run > 0 && symbols > 0; --run, --symbols) {
      append_utf8(text, pool[random() % pool.size()]);
    }
    char32_t any = static_cast<char32_t>(random() % 0x110000);
    if (any >= 0xD800 && any < 0xE000) any = U'x';
    if (random() % 8 == 0) append_utf8(text, any);
  }
  return text;
}

// As GPT-2's first encoder does it: the pair of the lowest rank merges wherever it is, from the left.
Ids merge_naively(const BpeMerges& merges, Ids ids) {
  while (ids.size() > 1) {
    BpeMerges::Merge best{BpeMerges::none, 0};
    std::int32_t left = 0, right = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const BpeMerges::Merge merge = merges.find(ids[i], ids[i + 1]);
      if (merge.rank >= best.rank) continue;
      best = merge;
      left = ids[i];
      right = ids[i + 1];
    }
    if (best.rank == BpeMerges::none) break;
    Ids merged;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool here = i + 1 < ids.size() && ids[i] == left && ids[i + 1] == right;
      merged.push_back(here ? best.merged : ids[i]);
      i += here;
    }
    ids = merged;
  }
  return ids;
}

std::string random_bytes(Random& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace

TEST_CASE("bpe: ids of hard texts, of a small vocabulary as in Hugging Face's and OpenAI's tokenizers") {
  check_stored_texts(small_tokenizer(), "ids");
}

TEST_CASE("bpe: GPT-2's own ids of hard texts") {
  const std::string folder = gpt2_folder();
  if (folder.empty()) return;
  const Tokenizer tokenizer = Tokenizer::bpe(BpeVocabulary::load(folder));
  CHECK(tokenizer.vocab_size() == 50257);
  CHECK(tokenizer.end_of_text() == 50256);
  check_stored_texts(tokenizer, "gpt2");
}

TEST_CASE("bpe: the ids of the tiny Shakespeare text") {
  const std::string folder = gpt2_folder(), path = folder + "/../tinyshakespeare.txt";
  if (folder.empty() || !std::filesystem::exists(path)) {
    MESSAGE("skipped: no tinyshakespeare.txt beside the folder of GPT-2's vocabulary");
    return;
  }
  const std::string text = read_file(path);
  const Ids ids = Tokenizer::bpe(BpeVocabulary::load(folder)).encode(text);
  std::uint64_t hash = 1469598103934665603u;  // FNV-1a over ids; the same of tiktoken 0.14 and tokenizers 0.23
  for (const std::int32_t id : ids) hash = (hash ^ static_cast<std::uint64_t>(id)) * 1099511628211u;
  CHECK(ids.size() == 338025);
  CHECK(hash == 0x3d07c86961222a18u);
}

TEST_CASE("bpe: words are the matches of GPT-2's pattern") {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(random, round < 200 ? 12 : 2000);
    CAPTURE(text);
    REQUIRE(words_of(text) == words_by_pattern(text));
  }
  // Every code point, alone and between letters.
  std::string all;
  for (char32_t symbol = 1; symbol < 0x110000; symbol += symbol < 0x3000 ? 1 : 37) {
    if (symbol >= 0xD800 && symbol < 0xE000) continue;
    append_utf8(all += "a", symbol);
    append_utf8(all += " ", symbol);
  }
  CHECK(words_of(all) == words_by_pattern(all));
}

TEST_CASE("bpe: a byte that is not UTF-8 splits as U+FFFD does") {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    std::string text = random_text(random, 200);
    for (int i = 0; i < 20; ++i) text[random() % text.size()] = static_cast<char>(random());
    // Every invalid byte replaced, and the words put back in bytes.
    std::string replaced;
    std::vector<std::size_t> lengths;  // in `text`, of each symbol
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint symbol = read_utf8(std::string_view(text).substr(i));
      append_utf8(replaced, symbol.bytes > 0 ? symbol.value : U'\uFFFD');
      lengths.push_back(static_cast<std::size_t>(std::max(symbol.bytes, 1)));
      i += lengths.back();
    }
    std::vector<std::string> expected;
    std::size_t position = 0, symbol = 0;
    for (const std::string& word : words_by_pattern(replaced)) {
      std::size_t length = 0;
      for (std::size_t i = 0; i < word.size(); ++symbol) {
        i += static_cast<std::size_t>(read_utf8(std::string_view(word).substr(i)).bytes);
        length += lengths[symbol];
      }
      expected.push_back(text.substr(position, length));
      position += length;
    }
    REQUIRE(words_of(text) == expected);
  }
}

TEST_CASE("bpe: cut texts have the words of the whole") {
  Random random(3);
  int cuts = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text = random_text(random, 100);
    for (int i = 0; i < 5; ++i) text[random() % text.size()] = static_cast<char>(random());
    const std::size_t cut = bpe_cut(text, random() % text.size());
    if (cut == text.size()) continue;
    ++cuts;
    std::vector<std::string> words = words_of(text.substr(0, cut));
    for (const std::string& word : words_of(text.substr(cut))) words.push_back(word);
    CAPTURE(cut);
    REQUIRE(words == words_of(text));
  }
  CHECK(cuts > 100);
  CHECK(bpe_cut("abc  def", 0) == 3);
  CHECK(bpe_cut("abc  def", 4) == 8);  // not within white space
  CHECK(bpe_cut("日\xE3\x80\x80 a\xE3\x80 b", 0) == 10);
}

TEST_CASE("bpe: words of any length merge as in GPT-2's first encoder") {
  const BpeMerges& merges = *small_tokenizer().merges();
  const BpeVocabulary& vocabulary = *small_tokenizer().vocabulary();
  Random random(4);
  for (std::size_t length = 1; length < 260; ++length) {
    std::string word = length % 3 == 0 ? repeated("lossmodel", 30).substr(0, length) : random_bytes(random, length);
    if (length % 3 == 1) {
      for (char& byte : word) byte = "aeinorst"[static_cast<unsigned char>(byte) % 8];
    }
    Ids bytes, found;
    for (const char byte : word) bytes.push_back(vocabulary.byte_token(static_cast<unsigned char>(byte)));
    merges.encode_word(word, found);
    CAPTURE(length);
    REQUIRE(found == merge_naively(merges, bytes));
  }
}

TEST_CASE("bpe: a word of a megabyte, and words that the cache forgets") {
  const Tokenizer& tokenizer = small_tokenizer();
  Random random(5);
  std::string word(1 << 20, 'a');
  CHECK(tokenizer.decode(tokenizer.encode(word)) == word);
  for (char& byte : word) byte = static_cast<char>('a' + random() % 26);
  CHECK(tokenizer.decode(tokenizer.encode(word)) == word);

  // Far more words than the cache has places, each several times.
  std::string text;
  for (int i = 0; i < 200000; ++i) text += " w" + std::to_string(random() % 100000);
  Ids together, apart;
  BpeEncoder encoder(tokenizer.merges());
  encoder.encode(text, together);
  for (const std::string& part : words_of(text)) tokenizer.merges()->encode_word(part, apart);
  CHECK(together == apart);
}

TEST_CASE("bpe: ten megabytes of random bytes go there and back") {
  Random random(6);
  const std::string bytes = random_bytes(random, 10000000);
  CHECK(small_tokenizer().decode(small_tokenizer().encode(bytes)) == bytes);
}

TEST_CASE("bpe: characters split over tokens come out whole") {
  const Tokenizer& tokenizer = small_tokenizer();
  const std::string text = "naïve 漢字 \U0001F9A9 é";
  const Ids ids = tokenizer.encode(text);
  StreamDecoder decoder(tokenizer);
  std::string shown;
  bool held_back = false;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    held_back = held_back || piece.empty();
    CHECK_FALSE(contains(piece, "\uFFFD"));
    shown += piece;
  }
  CHECK(held_back);  // the vocabulary has no token for all of the bird
  CHECK(shown + decoder.finish() == text);
  CHECK(tokenizer.piece(tokenizer.end_of_text()) == "<|endoftext|>");
  CHECK(tokenizer.encode("<|endoftext|>").size() > 1);
}
