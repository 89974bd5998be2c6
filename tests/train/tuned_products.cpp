// Products tuned before the first step: the same bits, and a file that keeps what was found.
#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/core/stream.h>
#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/train/cache_folder.h>
#include <greyhound/train/tuned_products.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// A cache folder of its own.
struct Cache {
  const TemporaryFolder folder;
  const Variable variable{"GREYHOUND_CACHE", folder / "cache"};

  static void write(const std::string& text) {
    std::filesystem::create_directories(cache_folder());
    write_file(tuned_products_path(), text);
  }
  static std::string read() { return read_file(tuned_products_path()); }
};

const std::string other_device =
    "\"another device\" cublaslt=130002 m=8 n=16 k=24 a=bf16 out=fp32 transpose_a=0 transpose_b=1 lda=24 ldb=24 ldc=16 "
    "ld_out=16 align_a=16 align_b=16 align_c=16 align_out=16 bias=0 device_scalars=0 algorithm=" +
    std::string(128, '0') + "\n";

struct Outcome {
  std::vector<double> losses;
  std::vector<float> weights;
  std::int64_t tuned = 0;
};

Outcome outcome_of(const Config& config, bool tune) {
  ToyRun run(config);
  Outcome outcome;
  if (tune) outcome.tuned = run.trainer->tune_products();
  for (int step = 0; step < 6; ++step) outcome.losses.push_back(run.trainer->step().loss);
  outcome.weights = run.weights();
  return outcome;
}

}  // namespace

TEST_CASE("tuned products: training keeps its bits and its data" * doctest::test_suite("cuda")) {
  if (!test::have_device()) return;
  const Stream stream(test::device_context());
  for (const char* precision : {"run.precision=fp32", "run.precision=bf16"}) {
    for (const char* recompute : {"train.recompute=none", "train.recompute=block"}) {
      const Config config = toy({precision, recompute, "model.n_head=2", "model.n_embd=64", "model.block_size=32",
                                 "model.vocab_size=301", "train.batch_tokens=192", "model.dropout=0.1"});
      const Context plain = test::cpu_as_device() ? test::device_context() : Context::cuda();
      const Outcome untuned = [&] {
        const test::BackendScope scope(plain);
        return outcome_of(config, false);
      }();
      const test::BackendScope scope(stream.context());
      const Outcome tuned = outcome_of(config, true);
      CHECK(tuned.losses == untuned.losses);
      CHECK(tuned.weights == untuned.weights);
      CHECK(untuned.tuned == 0);
      if (!test::cpu_as_device() && std::string(precision) == "run.precision=bf16" &&
          std::string(recompute) == "train.recompute=none") {
        CHECK(tuned.tuned > 8);
      }
    }
  }
}

TEST_CASE("tuned products: kept in the cache folder, and taken from there" * doctest::test_suite("cuda")) {
  if (!test::have_device() || test::cpu_as_device()) return;
  const Cache cache;
  const Config config = toy({"run.precision=bf16"});
  const auto tuned = [&] {
    const Stream stream(Context::cuda());
    const test::BackendScope scope(stream.context());
    load_tuned_products(stream.context());
    ToyRun run(config);
    const std::int64_t count = run.trainer->tune_products();
    save_tuned_products(stream.context());
    return count;
  };
  const std::int64_t first = tuned();
  CHECK(first > 0);
  const std::string text = Cache::read();
  CHECK(std::count(text.begin(), text.end(), '\n') == first);
  CHECK(tuned() == 0);
  CHECK(Cache::read() == text);

  Cache::write(other_device);
  CHECK(tuned() == first);
  CHECK(Cache::read().substr(0, other_device.size()) == other_device);
  CHECK(Cache::read().size() == other_device.size() + text.size());
  CHECK(tuned() == 0);
  Cache::write("what no choice looks like\n");
  CHECK(tuned() == first);
  CHECK(Cache::read() == "what no choice looks like\n");
}

TEST_CASE("tuned products: on the CPU there is nothing to tune, and no file or folder harms") {
  const Context context = Context::cpu();
  const auto use = [&] {
    load_tuned_products(context);
    save_tuned_products(context);
  };
  const Cache cache;
  use();  // no folder
  CHECK_FALSE(std::filesystem::exists(tuned_products_path()));
  for (const std::string& text : {other_device, other_device.substr(0, 40), std::string("\xff\0", 2)}) {
    Cache::write(text);
    use();
    CHECK(Cache::read() == text);
  }
  std::filesystem::remove(tuned_products_path());
  std::filesystem::create_directory(tuned_products_path());
  use();
  CHECK(std::filesystem::is_directory(tuned_products_path()));
  {
    const Variable nowhere("GREYHOUND_CACHE", "/proc/nowhere");
    use();
  }
  {
    const Variable own("GREYHOUND_CACHE", nullptr), cache_home("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
    CHECK_THROWS_AS(tuned_products_path(), Error);
    use();
  }
  ToyRun run(toy());
  CHECK(run.trainer->tune_products() == 0);
}
