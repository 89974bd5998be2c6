#include <doctest/doctest.h>
#include <greyhound/train/text_data.h>
#include <greyhound/train/tokenizer.h>
#include <greyhound/train/utf8.h>

#include "test_files.h"

#include <string>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::string stream(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const std::int32_t token : tokens) {
    const std::string piece = decoder.push(token);
    // Whatever comes out is whole characters.
    for (std::size_t i = 0; i < piece.size();) {
      const CodePoint symbol = read_utf8(std::string_view(piece).substr(i));
      REQUIRE(symbol.bytes > 0);
      i += static_cast<std::size_t>(symbol.bytes);
    }
    text += piece;
  }
  return text + decoder.finish();
}

const std::string mixed = "naïve café — 日本 \U0001F409\n\ttab";

}  // namespace

TEST_CASE("utf8: what is a character and what is not") {
  const struct {
    const char* text;
    int bytes;
    bool truncated;
    char32_t value;
  } cases[] = {
      {"a", 1, false, 'a'},
      {"\xC3\xA9", 2, false, 0xE9},
      {"\xE6\x97\xA5", 3, false, 0x65E5},
      {"\xF0\x9F\x90\x89", 4, false, 0x1F409},
      {"\xF4\x8F\xBF\xBF", 4, false, 0x10FFFF},
      {"\xC3", 0, true, 0},
      {"\xF0\x9F\x90", 0, true, 0},
      {"", 0, true, 0},
      {"\x80", 0, false, 0},              // a continuation byte
      {"\xC0\xAF", 0, false, 0},          // overlong
      {"\xE0\x80\xAF", 0, false, 0},      // overlong
      {"\xF0\x80\x80\xAF", 0, false, 0},  // overlong
      {"\xED\xA0\x80", 0, false, 0},      // a surrogate
      {"\xF4\x90\x80\x80", 0, false, 0},  // beyond U+10FFFF
      {"\xF5\x80\x80\x80", 0, false, 0},
      {"\xFF", 0, false, 0},
      {"\xC3(", 0, false, 0},
      {"\xE6\x97(", 0, false, 0},
  };
  for (const auto& test : cases) {
    CAPTURE(std::string(test.text));
    const CodePoint symbol = read_utf8(test.text);
    CHECK(symbol.bytes == test.bytes);
    CHECK(symbol.truncated == test.truncated);
    CHECK(symbol.value == test.value);
    std::string again;
    if (symbol.bytes > 0) append_utf8(again, symbol.value);
    if (symbol.bytes > 0) CHECK(again == test.text);
  }
}

TEST_CASE("tokenizer: bytes go there and back") {
  const Tokenizer tokenizer;
  CHECK(tokenizer.vocab_size() == 256);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const std::vector<std::int32_t> tokens = tokenizer.encode(all);
  REQUIRE(tokens.size() == 256);
  for (int i = 0; i < 256; ++i) CHECK(tokens[i] == i);
  CHECK(tokenizer.decode(tokens) == all);
}

TEST_CASE("tokenizer: characters are the code points of the text in ascending order") {
  const TemporaryFolder folder;
  const std::vector<char32_t> symbols =
      collect_symbols({write_file(folder / "a.txt", "béa"), write_file(folder / "b.txt", "a日\n")});
  REQUIRE(symbols == std::vector<char32_t>{'\n', 'a', 'b', 0xE9, 0x65E5});
  const Tokenizer tokenizer = Tokenizer::characters(symbols);
  CHECK(tokenizer.vocab_size() == 5);
  CHECK(tokenizer.encode("日éb") == std::vector<std::int32_t>{4, 3, 2});
  CHECK(tokenizer.decode(tokenizer.encode("abé日\n")) == "abé日\n");
  CHECK(contains(error_of([&] { tokenizer.encode("ab\xC3z"); }), "2: byte 2 of the text is not UTF-8"));
  CHECK(contains(error_of([&] { tokenizer.encode("aé?"); }), "character U+003F '?' at byte 3"));
  CHECK(contains(error_of([&] { Tokenizer::characters({'b', 'a'}); }), "symbols must ascend"));
}

TEST_CASE("tokenizer: ids are numbers separated by spaces") {
  const Tokenizer tokenizer = Tokenizer::ids(50257);
  CHECK(tokenizer.encode(" 15496 995\n50256 ") == std::vector<std::int32_t>{15496, 995, 50256});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.decode(tokenizer.encode("15496 995")) == "15496 995 ");
  for (const char* text : {"12 50257", "12 -1", "12 hello", "12 1x", "12 99999999999999999999"}) {
    CAPTURE(text);
    CHECK(contains(error_of([&] { tokenizer.encode(text); }), "at byte 3"));
  }
}

TEST_CASE("tokenizer: a stored one is the same, a damaged one a clear error") {
  const TemporaryFolder folder;
  const std::string path = folder / "tokenizer.json";
  const std::vector<Tokenizer> all = {
      Tokenizer::bytes(), Tokenizer::ids(1000),
      Tokenizer::characters({0, '\n', '"', '\\', 0x7F, 0xE9, 0xD7FF, 0xE000, 0x10FFFF})};
  for (const Tokenizer& tokenizer : all) {
    tokenizer.save(path);
    const Tokenizer again = Tokenizer::load(path);
    CHECK(again.kind() == tokenizer.kind());
    CHECK(again.vocab_size() == tokenizer.vocab_size());
    CHECK(again.symbols() == tokenizer.symbols());
  }
  const std::string cut = write_file(folder / "cut.json", "{\"kind\":\n\n");
  CHECK(contains(error_of([&] { Tokenizer::load(cut); }), " is not a tokenizer that greyhound wrote: line 3, column "));
  CHECK(contains(error_of([&] { Tokenizer::ids(9).encode(std::string("1 2\0", 4)); }), "got 2\\x00 at byte 2"));
  CHECK(contains(error_of([&] { Tokenizer::load(folder / "none.json"); }), "1: cannot open the tokenizer"));
  for (const char* text :
       {"", "{", "[]", "{\"kind\": \"bpe\", \"vocab_size\": 3}", "{\"kind\": \"byte\", \"vocab_size\": 3}",
        "{\"kind\": \"char\", \"vocab_size\": 3, \"symbols\": \"ab\"}", "{\"kind\": \"char\"}",
        "{\"kind\": \"char\", \"vocab_size\": 2, \"symbols\": \"ba\"}"}) {
    CAPTURE(text);
    write_file(path, text);
    CHECK(contains(error_of([&] { Tokenizer::load(path); }), "1: " + path + " is not a tokenizer"));
  }
  CHECK(contains(error_of([&] { Tokenizer::bytes().save(folder / "no/such/folder"); }), "No such file"));
}

TEST_CASE("stream decoder: characters split over tokens come out whole") {
  const Tokenizer bytes;
  CHECK(stream(bytes, bytes.encode(mixed)) == mixed);
  StreamDecoder decoder(bytes);
  CHECK(decoder.push(0xF0) == "");
  CHECK(decoder.push(0x9F) == "");
  CHECK(decoder.push(0x90) == "");
  CHECK(decoder.push(0x89) == "\U0001F409");
  CHECK(decoder.push('a') == "a");
  CHECK(decoder.finish() == "");
}

TEST_CASE("stream decoder: what is no text becomes U+FFFD, and nothing reaches the terminal's controls") {
  const Tokenizer bytes;
  CHECK(stream(bytes, {'a', 0xFF, 'b'}) == "a\uFFFDb");
  CHECK(stream(bytes, {0xC3, 'b'}) == "\uFFFDb");              // a sequence that is never completed
  CHECK(stream(bytes, {'a', 0xE6, 0x97}) == "a\uFFFD\uFFFD");  // nor at the end
  CHECK(stream(bytes, {0x1B, '[', '2', 'J'}) == "\uFFFD[2J");
  CHECK(stream(bytes, {0, 7, 8, 0x7F}) == "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(stream(bytes, {0xC2, 0x9B}) == "\uFFFD");  // the one-character form of ESC [
  CHECK(stream(bytes, {'\t', '\r', '\n'}) == "\t\r\n");
  CHECK(stream(bytes, {300}) == "\uFFFD");  // an id of the model that stands for nothing
  std::vector<std::int32_t> all;
  for (int i = 0; i < 2000; ++i) all.push_back((i * 7919 + i / 13) % 256);
  CHECK(stream(bytes, all).size() >= all.size() / 2);
}
