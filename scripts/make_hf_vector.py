#!/usr/bin/env python3
"""Makes tests/train/data/hf_gpt2: a small random GPT-2 written by transformers, and its logits for a few tokens.

    python3 scripts/make_hf_vector.py tests/train/data/hf_gpt2

Weights are fp32, as stored in model.safetensors; the logits are computed from them in fp64, so that a test that compares
measures our fp32 alone. Needs torch and transformers (made with 2.15 and 5.24).
"""

import json
import pathlib
import sys

import torch
import transformers

VOCAB, POSITIONS, TOKENS = 61, 16, 12


def make_model():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=24, n_layer=2, n_head=3, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Large enough that softmax, GELU and the norms are away from their linear parts; no bias is zero.
            value.copy_(0.4 * torch.randn(value.shape, generator=generator))
            if ".ln_" in name and name.endswith("weight"):
                value.add_(1)
    return model.eval()


def main():
    folder = pathlib.Path(sys.argv[1])
    model = make_model()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokens = [(i * i * 5 + 3 * i + 2) % VOCAB for i in range(TOKENS)]
    with torch.no_grad():
        logits = model.double()(torch.tensor([tokens])).logits[0]
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    rows = [[float(f"{value:.9g}") for value in row] for row in logits.tolist()]
    (folder / "logits.json").write_text(json.dumps({"made_with": versions, "tokens": tokens, "logits": rows}) + "\n")


if __name__ == "__main__":
    main()
