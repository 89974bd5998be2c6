// GPT-2 models as llm.c stores them (https://github.com/karpathy/llm.c): 256 int32 of header, then 16 arrays.
#pragma once

#include <greyhound/train/gpt2_import.h>

#include <string>

namespace greyhound {

// A memory-mapped model of version 3 (fp32) or 5 (bf16). Throws a runtime Error of one line (path, expected, found) for
// anything else; the sizes in the header are checked against the file's before they are used.
ModelFile read_llmc_model(const std::string& path);

// Writes `model`, with biases and a tied head, as version 3 (dtype fp32) or 5 (bf16). The vocabulary is padded with
// zeros to a multiple of 128, as llm.c's own files are. The file is replaced as a whole or not at all.
void write_llmc_model(const std::string& path, const ModelFile& model, DType dtype);

}  // namespace greyhound
