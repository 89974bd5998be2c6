#include <doctest/doctest.h>
#include <greyhound/train/bpe_vocabulary.h>
#include <greyhound/train/tokenizer.h>
#include <nlohmann/json.hpp>

#include "test_files.h"

using namespace greyhound;
using namespace greyhound::testing;
using Json = nlohmann::json;

namespace {

const std::string small_json = read_file(GREYHOUND_SOURCE_DIR "/tests/train/data/bpe_tokenizer.json");

std::string json_error(const std::string& json) {
  return error_of([&] { BpeVocabulary::parse_tokenizer_json(json, "t.json"); });
}

// The message for the small tokenizer with one change.
std::string changed_error(const std::function<void(Json&)>& change) {
  Json json = Json::parse(small_json);
  change(json);
  return json_error(json.dump());
}

// 256 byte tokens, "he" and <|endoftext|>.
Json tiny_vocab() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["he"] = 256;
  vocab["<|endoftext|>"] = 257;
  return vocab;
}

std::string merges_error(const std::string& merges) {
  const std::string vocab = tiny_vocab().dump();
  return error_of([&] { BpeVocabulary::parse_vocab_and_merges(vocab, "v.json", merges, "m.txt"); });
}

std::string vocab_error(const Json& vocab) {
  const std::string text = vocab.dump();
  return error_of([&] { BpeVocabulary::parse_vocab_and_merges(text, "v.json", "h e\n", "m.txt"); });
}

}  // namespace

TEST_CASE("bpe files: the alphabet of bytes") {
  CHECK(to_byte_alphabet("Az~!") == "Az~!");
  CHECK(to_byte_alphabet(" ") == "\u0120");
  CHECK(to_byte_alphabet(std::string_view("\0\n\x7F\xA0\xAD\xFF", 6)) == "\u0100\u010A\u0121\u0142\u0143\u00FF");
}

TEST_CASE("bpe files: vocab.json with merges.txt, and a tokenizer.json, are the same") {
  const TemporaryFolder folder;
  Json json = Json::parse(small_json);
  write_file(folder / "vocab.json", json["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : json["model"]["merges"]) {
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\r\n";
  }
  write_file(folder / "merges.txt", merges);
  const auto two_files = BpeVocabulary::load(folder.path());
  const BpeVocabulary one_file = BpeVocabulary::parse_tokenizer_json(small_json, "t.json");
  CHECK(two_files->size() == 1200);
  CHECK(two_files->end_of_text() == 0);
  CHECK(two_files->to_tokenizer_json() == one_file.to_tokenizer_json());

  // Merges as text, which older files have.
  for (Json& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const BpeVocabulary older = BpeVocabulary::parse_tokenizer_json(json.dump(), "t.json");
  CHECK(older.to_tokenizer_json() == one_file.to_tokenizer_json());

  // A tokenizer.json in the folder goes first; OpenAI's names are known.
  write_file(folder / "tokenizer.json", "{}");
  CHECK(contains(error_of([&] { BpeVocabulary::load(folder.path()); }), "tokenizer.json: expected a tokenizer.json"));
  std::filesystem::remove(folder / "tokenizer.json");
  std::filesystem::rename(folder / "vocab.json", folder / "encoder.json");
  CHECK(contains(error_of([&] { BpeVocabulary::load(folder.path()); }), "1: cannot open " + (folder / "vocab.bpe")));
  std::filesystem::rename(folder / "merges.txt", folder / "vocab.bpe");
  CHECK(BpeVocabulary::load(folder.path())->size() == 1200);
  CHECK(contains(error_of([&] { BpeVocabulary::load(folder / "none"); }), "none: there is no such file or folder"));
  std::filesystem::remove(folder / "encoder.json");
  CHECK(contains(error_of([&] { BpeVocabulary::load(folder.path()); }),
                 "2: tokenizer " + folder.path() + ": the folder holds neither tokenizer.json nor vocab.json"));
}

TEST_CASE("bpe files: what is written is read again") {
  const TemporaryFolder folder;
  const auto vocabulary =
      std::make_shared<const BpeVocabulary>(BpeVocabulary::parse_tokenizer_json(small_json, "t.json"));
  const Tokenizer tokenizer = Tokenizer::bpe(vocabulary);
  tokenizer.save(folder / "tokenizer.json");
  const Tokenizer again = Tokenizer::load(folder / "tokenizer.json");
  CHECK(again.kind() == TokenizerKind::bpe);
  CHECK(again.vocab_size() == 1200);
  CHECK(again.end_of_text() == 0);
  CHECK(again.vocabulary()->special_tokens() == std::vector<std::int32_t>{0});
  CHECK(again.encode("The hound runs") == tokenizer.encode("The hound runs"));
  CHECK(again.vocabulary()->to_tokenizer_json() == vocabulary->to_tokenizer_json());
}

TEST_CASE("bpe files: a tokenizer that is something else is refused, and what it is is named") {
  const struct {
    std::function<void(Json&)> change;
    const char* message;
  } cases[] = {
      {[](Json& t) { t["model"]["type"] = "WordPiece"; }, "model.type is \"WordPiece\": expected \"BPE\""},
      {[](Json& t) { t["model"]["type"] = "Unigram"; }, "model.type is \"Unigram\""},
      {[](Json& t) {
         t["normalizer"] = {{"type", "NFC"}};
       },
       "normalizer is \"NFC\": expected null"},
      {[](Json& t) {
         t["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       "pre_tokenizer is \"Metaspace\""},
      {[](Json& t) { t["pre_tokenizer"] = nullptr; }, "pre_tokenizer is null"},
      {[](Json& t) { t["pre_tokenizer"]["add_prefix_space"] = true; }, "pre_tokenizer.add_prefix_space is true"},
      {[](Json& t) { t["pre_tokenizer"]["use_regex"] = false; }, "pre_tokenizer.use_regex is false"},
      {[](Json& t) { t["model"]["dropout"] = 0.1; }, "model.dropout is 0.1"},
      {[](Json& t) { t["model"]["ignore_merges"] = true; }, "model.ignore_merges is true"},
      {[](Json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix is \"</w>\""},
      {[](Json& t) { t["added_tokens"][0]["special"] = false; }, "\"<|endoftext|>\" is not special"},
      {[](Json& t) { t["added_tokens"][0]["id"] = 5; }, "has the ids 0 and 5"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.message);
    CHECK(contains(changed_error(test.change), std::string("1: t.json: ")));
    CHECK(contains(changed_error(test.change), test.message));
  }
}

TEST_CASE("bpe files: malformed ones are one clear line") {
  for (const char* text : {"", "[]", "{}", "3", "{\"model\": 3}", "{\"model\": {}}", "{\"model\": {\"type\": \"BPE\"}}",
                           "\xFF", "{\"model\": {\"type\":", "null"}) {
    CAPTURE(text);
    CHECK(contains(json_error(text), "1: t.json: "));
  }
  CHECK(contains(json_error(small_json.substr(0, small_json.size() / 2)), "1: t.json: expected JSON"));
  CHECK(contains(changed_error([](Json& t) { t["model"]["vocab"] = {1, 2}; }), "model.vocab: expected an object"));
  CHECK(contains(changed_error([](Json& t) { t["model"]["merges"] = 7; }), "model.merges: expected a list, found 7"));
  CHECK(contains(changed_error([](Json& t) { t["model"]["merges"][3] = {"a"}; }),
                 "model.merges[3]: expected two tokens"));
  CHECK(
      contains(changed_error([](Json& t) { t["model"]["merges"][3] = "ab"; }), "model.merges[3]: expected two tokens"));
  CHECK(contains(changed_error([](Json& t) { t["model"]["merges"][3] = "a zzzzz"; }), "\"zzzzz\" is not in the vocab"));
  CHECK(contains(changed_error([](Json& t) { t["added_tokens"] = 1; }), "added_tokens: expected a list"));
  CHECK(contains(changed_error([](Json& t) { t["added_tokens"][0] = "x"; }), "added_tokens: found \"x\""));

  CHECK(merges_error("h e\n") == "no error");
  CHECK(merges_error("#version: 0.2\n\nh e") == "no error");
  CHECK(merges_error("#version: 0.2\n") ==
        "1: v.json: 1 token of the vocabulary, such as \"he\", is made by no merge; is the list of merges complete?");
  CHECK(contains(changed_error([](Json& t) {
                   Json& merges = t["model"]["merges"];
                   merges.erase(merges.begin() + static_cast<std::ptrdiff_t>(merges.size() / 2), merges.end());
                 }),
                 " tokens of the vocabulary, such as "));
  CHECK(changed_error([](Json& t) { t["model"]["vocab"]["<pad>"] = 1200; }) == "no error");
  CHECK(changed_error([](Json& t) { t["model"]["vocab"]["madeupword"] = 1200; }) == "no error");  // a warning
  CHECK(contains(merges_error("#version\nhe\n"), "1: m.txt: line 2: expected two tokens separated by a space"));
  CHECK(contains(merges_error("h e x\n"), "1: m.txt: line 1: expected two tokens"));
  CHECK(contains(merges_error("# #\n"), "m.txt: line 1: the token \"##\" is not in the vocabulary"));

  Json vocab = tiny_vocab();
  vocab["he"] = 2000000000;
  CHECK(contains(vocab_error(vocab), "1: v.json: the token \"he\" has id 2000000000: expected the ids 0 to 257"));
  for (const Json& id :
       {Json(-1), Json(1.5), Json("7"), Json(nullptr), Json(4294967296), Json(18446744073709551615u)}) {
    CAPTURE(id.dump());
    vocab["he"] = id;
    CHECK(contains(vocab_error(vocab), "the token \"he\" has id " + id.dump() + ": expected a number"));
  }
  vocab["he"] = 255;
  CHECK(contains(vocab_error(vocab), "two tokens have the id 255"));
  vocab = tiny_vocab();
  vocab["日"] = 258;
  CHECK(contains(vocab_error(vocab), "is not written in the alphabet of byte-level BPE"));
  vocab = tiny_vocab();
  vocab.erase("A");
  vocab["<|endoftext|>"] = 65;
  vocab["hh"] = 256;
  vocab["he"] = 256;
  CHECK(contains(vocab_error(vocab), "1: v.json: "));
  vocab = tiny_vocab();
  vocab.erase("A");
  vocab["hh"] = 65;
  CHECK(contains(vocab_error(vocab), "no token stands for the byte 65"));
}
