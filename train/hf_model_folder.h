// GPT-2 models as Hugging Face's transformers stores them: config.json and model.safetensors in a folder.
#pragma once

#include <greyhound/train/gpt2_import.h>

#include <string>

namespace greyhound {

// Names with or without "transformer.", a head that is tied or not, rows of padding after the vocabulary. Throws a
// runtime Error of one line (path, expected, found) when a file is missing or malformed, or when config.json asks for
// something that we do not compute: another activation, another epsilon, cross attention, ...
ModelFile read_hf_model(const std::string& folder);

// Writes a folder that GPT2LMHeadModel.from_pretrained loads: weights in `dtype` (fp32 or bf16), model.safetensors
// last. `model` has biases; `dropout` becomes that of the configuration, `end_of_text` its first and last token (-1:
// none). The folder is made when it is missing.
void write_hf_model(const std::string& folder, const ModelFile& model, DType dtype, double dropout,
                    std::int32_t end_of_text = -1);

}  // namespace greyhound
