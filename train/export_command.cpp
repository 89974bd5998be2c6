#include <greyhound/train/commands.h>
#include <greyhound/train/console.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/hf_model_folder.h>
#include <greyhound/train/llmc_model_file.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/tokenizer.h>

#include <filesystem>
#include <initializer_list>

namespace greyhound {

namespace fs = std::filesystem;

namespace {

constexpr const char* hugging_face = "hf";

// What GPT-2, and so the format, has no word for.
void require_gpt2(const ExportOptions& options, const Config& config) {
  const std::string start = concat(options.run_dir, ": cannot be exported as ",
                                   options.format == hugging_face ? "Hugging Face's GPT-2" : "a llm.c model", ": ");
  require(config.model.bias, start,
          "GPT-2 has biases in all linear layers and norms, this model has none (model.bias)");
  require(config.loss.softcap == 0, start, "GPT-2 does not cap its logits, this model does (loss.softcap ",
          config.loss.softcap, ")");
  require(config.model.tie_embeddings || options.format == hugging_face, start,
          "llm.c's head is the token embedding, this model has one of its own (model.tie_embeddings)");
}

void require_absent(const std::string& path) {
  std::error_code ignored;
  require(!fs::exists(path, ignored), path, ": is there already; choose another place, or remove it");
}

// Of bare ids with a vocabulary that is rounded up, GPT-2's is the likely one.
std::int32_t end_of_text(const Tokenizer& tokenizer) {
  constexpr std::int32_t of_gpt2 = 50256;
  return tokenizer.kind() == TokenizerKind::ids && tokenizer.vocab_size() > of_gpt2 ? of_gpt2 : tokenizer.end_of_text();
}

void write_tokenizer(const std::string& folder, const Tokenizer& tokenizer, const Config& config) {
  tokenizer.save(folder + "/tokenizer.json");
  write_atomically(folder + "/tokenizer_config.json",
                   concat("{\n  \"add_prefix_space\": false,\n  \"model_max_length\": ", config.model.block_size,
                          ",\n  \"tokenizer_class\": \"GPT2Tokenizer\"\n}\n"));
}

}  // namespace

void export_command(const ExportOptions& options) {
  set_up_console();
  const RunDir run(options.run_dir);
  run.require_run();
  const Config config = load_config(run.config());
  require_gpt2(options, config);
  const ModelFile model = read_run_model(options.run_dir);
  const DType dtype = options.dtype == "bf16" ? DType::bf16 : DType::fp32;
  if (options.format == hugging_face) {
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      require_absent(options.out + "/" + file);
    }
    const Tokenizer tokenizer = Tokenizer::load(run.tokenizer());
    write_hf_model(options.out, model, dtype, config.model.dropout, end_of_text(tokenizer));
    const bool gpt2_tokenizer = tokenizer.kind() == TokenizerKind::bpe;
    if (gpt2_tokenizer) write_tokenizer(options.out, tokenizer, config);
    spdlog::info(
        "wrote {}: {}, {}, {}", options.out, to_string(model.sizes), name_of(dtype),
        gpt2_tokenizer ? "with its tokenizer" : "without a tokenizer: the run has none that transformers knows");
  } else {
    require_absent(options.out);
    write_llmc_model(options.out, model, dtype);
    spdlog::info("wrote {}: {}, {}", options.out, to_string(model.sizes), name_of(dtype));
  }
  require_output_written();
}

}  // namespace greyhound
