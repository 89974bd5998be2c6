#include <doctest/doctest.h>
#include <greyhound/core/error.h>
#include <greyhound/train/batch_plan.h>
#include <greyhound/train/config.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/yaml_reader.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>

using namespace greyhound;

namespace {

// The message of the usage error that `function` must throw.
template <class Function>
std::string usage_error(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "no error";
}

std::string parse_error(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return usage_error([&] { parse_config(yaml, "run.yaml", overrides); });
}

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("config: mistakes are named with file, line, column and the nearest key") {
  const struct {
    const char* yaml;
    const char* start;
    const char* part;
  } cases[] = {
      {"optimizer:\n  learning_rte: 1e-4\n", "run.yaml:2:3: unknown key optimizer.learning_rte",
       "did you mean optimizer.lr?"},
      {"optimizer:\n  beta_2: 0.9\n", "run.yaml:2:3:", "did you mean optimizer.beta2?"},
      {"train:\n  lr: 1\n", "run.yaml:2:3: unknown key train.lr", "did you mean optimizer.lr?"},
      {"train:\n  batch_size: 8\n", "run.yaml:2:3:", "did you mean train.micro_batch?"},
      {"log:\n  evry: 1\n", "run.yaml:2:3:", "did you mean log.every?"},
      {"eval:\n  qwertyuiopasdf: 1\n", "run.yaml:2:3:", "the keys of eval are every, batches"},
      {"run:\n  seed: 1\noptimiser:\n  lr: 1\n", "run.yaml:3:1: unknown section optimiser", "did you mean optimizer?"},
      {"optimiser:\n", "run.yaml:1:1:", "did you mean optimizer?"},
      {"lr: 1\n", "run.yaml:1:1: expected keys below lr", "got a value"},
      {"run:\n  seed: 1\n  seed: 2\n", "run.yaml:3:3: duplicate key run.seed", "already given at run.yaml:2:3"},
      {"run:\n  seed: 1\nlog:\n  every: 1\nrun:\n  dir: a\n", "run.yaml:5:1: duplicate section run", "run.yaml:1:1"},
      {"model:\n  n_layer: 3.5\n", "run.yaml:2:12: model.n_layer: expected a whole number", "got 3.5"},
      {"model:\n  n_layer: 1e3\n", "run.yaml:2:12:", "expected a whole number, got 1e3"},
      {"model:\n  n_layer: \"4\"\n", "run.yaml:2:12:", "got the text \"4\""},
      {"model:\n  n_layer: 99999999999999999999\n", "run.yaml:2:12:", "expected a whole number"},
      {"optimizer:\n  lr: yes\n", "run.yaml:2:7: optimizer.lr: expected a number", "got yes"},
      {"optimizer:\n  lr: .nan\n", "run.yaml:2:7:", "expected a number"},
      {"optimizer:\n  lr: inf\n", "run.yaml:2:7:", "expected a number"},
      {"optimizer:\n  lr: 1e999\n", "run.yaml:2:7:", "expected a number"},
      {"optimizer:\n  lr: +-1\n", "run.yaml:2:7:", "expected a number"},
      {"optimizer:\n  lr: 1e-4x\n", "run.yaml:2:7:", "expected a number"},
      {"model:\n  bias: yes\n", "run.yaml:2:9: model.bias: expected true or false", "got yes"},
      {"run:\n  device: gpu\n", "run.yaml:2:11: run.device: expected one of auto, cpu, cuda", "got gpu"},
      {"run:\n  precision: fp16\n", "run.yaml:2:14:", "expected one of fp32, bf16"},
      {"schedule: {kind: exponential}\n", "run.yaml:1:18:", "constant, linear, cosine"},
      {"run:\n  dir: [a, b]\n", "run.yaml:2:8:", "got a list"},
      {"run:\n  dir:\n", "run.yaml:2:3:", "has no value"},
      {"- a\n- b\n", "run.yaml:1:1: expected sections", "got a list"},
      {"run:\n  dir: \"a\n", "run.yaml:", "bad YAML"},
      {"run:\n  dir: a\n   seed: 1\n", "run.yaml:3:8: bad YAML", ""},
      {"run: {dir: a\nlog: 1\n", "run.yaml:", "bad YAML"},
      {"run:\n\tdir: a\n", "run.yaml:2:", "bad YAML"},
      {"run:\n  dir: *a\n", "run.yaml:2:8: bad YAML", ""},
      {"run:\n  dir: a\n---\nrun:\n  dir: b\n", "run.yaml: expected one YAML document, found more", ""},
      {",@", "run.yaml: expected one YAML document, found more", ""},  // yaml-cpp sees them without end
      {"optimizer:\n  LR: 1\n", "run.yaml:2:3: unknown key optimizer.LR", "did you mean optimizer.lr?"},
      {"optimizer:\n  BETA_2: 1\n", "run.yaml:2:3:", "did you mean optimizer.beta2?"},
      {"MODEL:\n", "run.yaml:1:1: unknown section MODEL", "did you mean model?"},
      {"init_from: a/run\n", "run.yaml:1:1: expected keys below init_from, got a value",
       "did you mean model.init_from?"},
      {"init_from: {}\n", "run.yaml:1:1: unknown section init_from", "did you mean model.init_from?"},
      {"n_layer: 1\n", "run.yaml:1:1: expected keys below n_layer, got a value", "did you mean model.n_layer?"},
      {"model: 1\n", "run.yaml:1:1: expected keys below model, got a value", ""},
      {"model: {\"\": 3}\n", "run.yaml:1:9: expected the name of a key", "got ''"},
      {"\"\": {}\n", "run.yaml:1:1: expected the name of a section", "got ''"},
      {"model:\n  n_layer: \"\"\n", "run.yaml:2:12: model.n_layer: expected a whole number", "got the text \"\""},
      // Ranges.
      {"optimizer:\n  lr: -1\n", "run.yaml:2:7: optimizer.lr: expected a number from 0", "got -1"},
      {"optimizer:\n  beta2: 1\n", "run.yaml:2:10:", "from 0 to below 1, got 1"},
      {"optimizer:\n  eps: 0\n", "run.yaml:2:8:", "above 0"},
      {"model:\n  dropout: 1.0\n", "run.yaml:2:12:", "to below 1"},
      {"model:\n  n_layer: 0\n", "run.yaml:2:12:", "got 0"},
      {"loss:\n  z_loss_multiplier: -1e-4\n", "run.yaml:2:22:", "got -1e-04"},
      {"loss:\n  label_smoothing: 1\n", "run.yaml:2:20:", "below 1"},
      {"loss:\n  softcap: -30\n", "run.yaml:2:12:", "got -30"},
      // Numbers that are out of range, or nothing, as fp32.
      {"optimizer:\n  eps: 1e-60\n", "run.yaml:2:8: optimizer.eps: expected a number",
       "which is 0 in single precision"},
      {"optimizer:\n  beta1: 0.9999999999\n", "run.yaml:2:10: optimizer.beta1:", "which is 1 in single precision"},
      {"optimizer:\n  beta2: 0.999999999\n", "run.yaml:2:10: optimizer.beta2:", "which is 1 in single precision"},
      {"optimizer:\n  grad_clip: 1e-300\n", "run.yaml:2:14: optimizer.grad_clip:", "which is 0 in single precision"},
      {"model:\n  dropout: 0.9999999999\n", "run.yaml:2:12: model.dropout:", "which is 1 in single precision"},
      {"loss:\n  label_smoothing: 0.9999999999\n", "run.yaml:2:20: loss.label_smoothing:", "which is 1 in single"},
      {"loss:\n  softcap: 1e-60\n", "run.yaml:2:12: loss.softcap:", "which is 0 in single precision"},
      {"loss:\n  z_loss_multiplier: 1e-46\n", "run.yaml:2:22: loss.z_loss_multiplier:", "which is 0 in single"},
      {"data:\n  ignore_token: -2\n", "run.yaml:2:17:", "got -2"},
      {"eval:\n  every: -1\n", "run.yaml:2:10: eval.every: expected a whole number from 0", "got -1"},
      {"sample:\n  every: -1\n", "run.yaml:2:10: sample.every", "got -1"},
      {"checkpoint:\n  every: -1\n", "run.yaml:2:10: checkpoint.every", "got -1"},
      {"log:\n  every: -1\n", "run.yaml:2:10: log.every", "got -1"},
      {"schedule:\n  warmup_steps: -1\n", "run.yaml:2:17: schedule.warmup_steps", "got -1"},
      // Values against each other.
      {"model:\n  n_embd: 100\n  n_head: 3\n", "run.yaml: model.n_embd 100 is not a multiple of model.n_head 3", ""},
      {"train:\n  max_steps: 10\nschedule:\n  warmup_steps: 11\n", "run.yaml: schedule.warmup_steps 11 is longer",
       "train.max_steps 10"},
      {"train:\n  batch_tokens: 100\nmodel:\n  block_size: 64\n", "run.yaml: train.batch_tokens 100", "64 tokens"},
      {"data:\n  train: synthetic\n", "run.yaml: data.train: synthetic needs model.vocab_size", ""},
      {"data:\n  val: synthetic\n", "run.yaml: data.train and data.val", ""},
      {"data:\n  train: \"\"\n", "run.yaml: data.train is empty", ""},
      {"data:\n  ignore_token: 256\nmodel:\n  vocab_size: 256\n", "run.yaml: data.ignore_token 256", ""},
  };
  for (const auto& test : cases) {
    const std::string message = parse_error(test.yaml);
    CAPTURE(std::string(test.yaml));
    CAPTURE(message);
    CHECK(starts_with(message, test.start));
    CHECK(contains(message, test.part));
  }
}

TEST_CASE("config: characters that end a text for the system are shown, and are no part of a name") {
  CHECK(contains(parse_error("run: {dir: \"a\\0b\"}"),
                 "run.dir: expected text without the character \\x00, got a\\x00b"));
  CHECK(contains(parse_error("model: {n_layer: \"a\\0b\"}"), "got the text \"a\\x00b\""));
  CHECK(contains(parse_error("model: {\"a\\0b\": 1}"), "unknown key model.a\\x00b"));
  CHECK(parse_config("sample: {prompt: \"a\\0b\"}", "run.yaml").sample.prompt == std::string("a\0b", 3));
}

TEST_CASE("config: YAML that is nested too deeply is called that") {
  const std::string message = parse_error(std::string(10000, '['));
  CAPTURE(message);
  CHECK(contains(message, "bad YAML: nested too deeply"));
}

TEST_CASE("config: an override without its section is told the key") {
  CHECK(contains(parse_error("", {"init_from=runs/a.b"}),
                 "override 'init_from=runs/a.b': expected section.key=value; did you mean model.init_from?"));
}

TEST_CASE("config: 1e-4, 1.0E-4 and .0001 are equal numbers") {
  for (const char* text : {"1e-4", "1.0E-4", ".0001", "0.0001", "+1e-4", "1.e-4"}) {
    CAPTURE(text);
    CHECK(parse_config(concat("optimizer:\n  lr: ", text, "\n"), "run.yaml").optimizer.lr == 1e-4);
  }
  CHECK(parse_config("optimizer: {weight_decay: 1}", "run.yaml").optimizer.weight_decay == 1.0);
}

TEST_CASE("config: every interval of 0 is accepted, and warm-up as long as the run") {
  const Config config = parse_config(
      "eval: {every: 0}\nsample: {every: 0}\ncheckpoint: {every: 0}\nlog: {every: 0}\n"
      "train: {max_steps: 7}\nschedule: {warmup_steps: 7}\n",
      "run.yaml");
  CHECK(config.eval.every == 0);
  CHECK(config.sample.every == 0);
  CHECK(config.checkpoint.every == 0);
  CHECK(config.log.every == 0);
  CHECK(config.schedule.warmup_steps == 7);
}

TEST_CASE("config: every type of value arrives") {
  const Config config = parse_config(
      "run:\n  dir: runs/a b\n  seed: 9007199254740992\n  device: cpu\n  precision: bf16\n"
      "model: {bias: false, dropout: 0.25}\n"
      "data: {train: \"d/*.bin\", tokenizer: char, ignore_token: 0}\n"
      "loss: {grad_weight_accum_dtype: weight}\nschedule: {kind: linear}\nsample: {prompt: 'It is'}\neval:\n",
      "run.yaml");
  CHECK(config.run.dir == "runs/a b");
  CHECK(config.run.seed == 9007199254740992);
  CHECK(config.run.device == "cpu");
  CHECK(config.run.precision == DType::bf16);
  CHECK_FALSE(config.model.bias);
  CHECK(config.model.tie_embeddings);
  CHECK(config.model.dropout == 0.25);
  CHECK(config.data.train == "d/*.bin");
  CHECK(config.data.tokenizer == "char");
  CHECK(config.data.ignore_token == 0);
  CHECK(config.loss.grad_weight_accum_dtype == loss::AccumDType::weight);
  CHECK(config.schedule.kind == ScheduleKind::linear);
  CHECK(config.sample.prompt == "It is");
}

TEST_CASE("config: overrides win, the last one most, and are checked the same way") {
  const std::string yaml = "train:\n  max_steps: 10\n";
  const Config config = parse_config(
      yaml, "run.yaml", {"train.max_steps=20", "train.max_steps=30", "sample.prompt=a=b: *c", "data.train=x/*.txt"});
  CHECK(config.train.max_steps == 30);
  CHECK(config.sample.prompt == "a=b: *c");
  CHECK(config.data.train == "x/*.txt");
  CHECK(parse_config(yaml, "run.yaml", {"sample.prompt=\"a\\n\""}).sample.prompt == "a\n");
  CHECK(parse_config(yaml, "run.yaml", {"sample.prompt="}).sample.prompt == "");

  const struct {
    const char* override_text;
    const char* part;
  } cases[] = {
      {"optimizer.learning_rte=1", "did you mean optimizer.lr?"},
      {"optimiser.lr=1", "did you mean optimizer?"},
      {"train.max_steps=3.5", "expected a whole number, got 3.5"},
      {"train.max_steps=\"3\"", "got the text \"3\""},
      {"train.max_steps=", "expected a whole number, got ''"},
      {"optimizer.beta2=0.999999999", "got 0.999999999, which is 1 in single precision"},
      {"eval.every=-1", "got -1"},
      {"train.max_steps", "expected section.key=value"},
      {"max_steps=3", "expected section.key=value"},
      {"train.=3", "expected section.key=value"},
      {".max_steps=3", "expected section.key=value"},
      {"sample.prompt=\"a", "bad YAML"},
  };
  for (const auto& test : cases) {
    const std::string message = parse_error(yaml, {test.override_text});
    CAPTURE(message);
    CHECK(starts_with(message, concat("override '", test.override_text, "'")));
    CHECK(contains(message, test.part));
  }
  CHECK(contains(parse_error(yaml, {"schedule.warmup_steps=11"}), "run.yaml with overrides: schedule.warmup_steps 11"));
}

TEST_CASE("config: a missing file or a folder is one line") {
  CHECK(contains(usage_error([] { load_config("no/such/file.yaml"); }), "no/such/file.yaml: No such file"));
  CHECK(contains(usage_error([] { load_config("/tmp"); }), "cannot read the configuration /tmp"));
}

TEST_CASE("config: what a file says cannot break a message into lines") {
  for (const char* text : {"a: \"\\\n\"", "\"a\\nb\": {c: 1}", "run: {\"d\\ni\\er\": 3}", "run: {seed: \"1\\n2\"}"}) {
    CAPTURE(text);
    CHECK(starts_with(parse_error(text), "run.yaml"));  // parse_error checks that it is one line
  }
  CHECK(starts_with(parse_error(std::string("model: .n_lkey optimizer.lrdata# \0\n", 35)), "run.yaml:2:1: bad YAML"));
}

TEST_CASE("config: to_yaml loads again to the same values") {
  Config config = default_config();
  config.run.dir = "a \"quoted\" \\ path";
  config.run.seed = 123456789012345;
  config.run.precision = DType::bf16;
  config.optimizer.lr = 0.1 + 0.2;
  config.optimizer.eps = 1e-38;
  config.sample.prompt = "line\n\ttab \x01 \x7f {é} # not a comment: x";
  config.data.tokenizer = "char";
  config.model.tie_embeddings = false;
  const std::string yaml = to_yaml(config);
  const Config again = parse_config(yaml, "again.yaml");
  for (const ConfigKey& key : config_schema()) {
    CAPTURE(key.name());
    CHECK(key.get(again) == key.get(config));
  }
  CHECK(to_yaml(again) == yaml);
  CHECK(read_yaml(yaml, "again.yaml").size() > config_schema().size());  // every key, and the sections
}

TEST_CASE("config: validate refuses values that a program put in") {
  Config config = default_config();
  config.eval.every = -1;
  CHECK(contains(usage_error([&] { validate(config); }), "eval.every"));
  config = default_config();
  config.run.precision = DType::fp64;
  CHECK(contains(usage_error([&] { validate(config); }), "run.precision"));
  config = default_config();
  config.optimizer.lr = std::numeric_limits<double>::quiet_NaN();
  CHECK(contains(usage_error([&] { validate(config); }), "optimizer.lr"));
}

TEST_CASE("config: an empty file is the defaults") {
  CHECK(to_yaml(parse_config("", "run.yaml")) == to_yaml(default_config()));
  CHECK(to_yaml(parse_config("# nothing\n", "run.yaml")) == to_yaml(default_config()));
}

TEST_CASE("configs/: reference.yaml holds every key with its default; all files load") {
  const std::string folder = std::string(GREYHOUND_SOURCE_DIR) + "/configs";
  const std::string path = folder + "/reference.yaml";
  const Config reference = load_config(path);
  for (const ConfigKey& key : config_schema()) {
    CAPTURE(key.name());
    CHECK(key.get(reference) == key.default_value);
  }

  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::set<std::string> given;
  for (const YamlEntry& entry : read_yaml(text, path)) {
    if (!entry.key.empty()) given.insert(entry.section + "." + entry.key);
  }
  for (const ConfigKey& key : config_schema()) {
    CAPTURE(key.name());
    CHECK(given.count(key.name()) == 1);
    // The first words of a key's comment are those of the schema, so that neither drifts from the other.
    CHECK(contains(text, "# " + key.meaning));
  }
  CHECK(given.size() == config_schema().size());

  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    CHECK_NOTHROW(load_config(entry.path().string()));
    ++files;
  }
  CHECK(files >= 4);
}

TEST_CASE("configs/quickstart.yaml: the batch divides among 1, 2, 3, 4 and 6 ranks") {
  const Config config = load_config(std::string(GREYHOUND_SOURCE_DIR) + "/configs/quickstart.yaml");
  REQUIRE(config.train.batch_tokens > 0);
  for (const std::int64_t ranks : {1, 2, 3, 4, 6}) {
    CAPTURE(ranks);
    const BatchPlan plan =
        plan_batch(config.train.micro_batch, config.train.batch_tokens, config.model.block_size, ranks);
    CHECK(plan.tokens() == config.train.batch_tokens);
  }
}
