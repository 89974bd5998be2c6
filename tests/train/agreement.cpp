// With one rank; what several do is in tests/mpi.
#include <doctest/doctest.h>
#include <greyhound/train/agreement.h>

#include <algorithm>

#include "test_files.h"
#include "toy_run.h"

using namespace greyhound;
using namespace greyhound::testing;

TEST_CASE("agreement: one rank agrees with itself, and throws what its work throws") {
  const std::unique_ptr<Communicator> alone = make_single_rank();
  CHECK(get_together(*alone, [] { return 3; }) == 3);
  CHECK(error_of([&] { run_together(*alone, [] { throw_runtime("no room"); }); }) == "1: no room");
  CHECK_NOTHROW(require_same(*alone, "what", {{"a", "1"}}));
  for (const char* wish : {"cpu", "auto", "cuda"}) CHECK(agree_on_gpu(*alone, wish) == 0);
}

TEST_CASE("agreement: every key is compared, and every file by size and content of its ends") {
  const std::vector<Fact> facts = facts_of(toy({"optimizer.lr=2e-3"}));
  const auto value = [&](const std::string& name) {
    const auto found = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) { return fact.name == name; });
    return found == facts.end() ? "none" : found->value;
  };
  CHECK(value("optimizer.lr") == "0.002");
  CHECK(value("distributed.reduce_dtype") == "fp32");
  CHECK(value("run.dir") == "unused");
  CHECK(value("the program's version") != "none");
  CHECK(facts_of_files(toy()).empty());  // synthetic

  const TemporaryFolder folder;
  const std::string a = write_file(folder / "a.bin", std::string(200000, 'x'));
  write_file(folder / "b.bin", "");
  const Config config = toy({"data.train=" + folder / "*.bin", "data.val=" + a, "data.tokenizer=" + folder / "none"});
  const std::vector<Fact> files = facts_of_files(config);
  REQUIRE(files.size() == 4);
  CHECK(files[0].name == a);
  CHECK(contains(files[0].value, "200000 bytes, hash "));
  CHECK(files[2].value == files[0].value);
  CHECK(files[3].value == "not there");
  for (const std::size_t place : {0u, 199999u}) {
    std::string changed(200000, 'x');
    changed[place] = 'y';
    write_file(a, changed);
    CHECK(facts_of_files(config)[0].value != files[0].value);
  }
  CHECK(contains(error_of([&] { facts_of_files(toy({"data.train=" + folder / "*.txt", "data.val="})); }), "no file"));
}
