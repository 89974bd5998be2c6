#!/usr/bin/env python3
"""Checks with transformers that what `greyhound export` writes is the model that `greyhound train` read.

    python3 scripts/check_export.py build/bin/greyhound

A small random GPT-2 (tests/train/data/hf_gpt2, or a folder given as second argument) is taken over by
model.init_from and trained for one step with a learning rate of 0, which changes no weight; the run is exported as a
Hugging Face folder and as a llm.c model, in fp32 and bf16. transformers must load the folders and give the logits of
the original; the llm.c files are read by the layout of llm.c's train_gpt2.py. Prints the largest differences. Where
torch or transformers is missing it says "skipped" and ends with 0.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

CONFIG = """
run: {{dir: {dir}, device: cpu}}
model: {{init_from: {start}}}
data: {{train: synthetic, val: synthetic}}
optimizer: {{lr: 0}}
train: {{micro_batch: 1, max_steps: 1}}
eval: {{every: 0}}
"""


def logits(model, tokens):
    with torch.no_grad():
        return model.double().eval()(tokens).logits


def read_llmc(path):
    """A transformers model with the weights of a llm.c file, read as train_gpt2.py writes it."""
    data = pathlib.Path(path).read_bytes()
    magic, version, positions, vocab, layers, heads, width, padded = struct.unpack("<8i", data[:32])
    assert magic == 20240326 and version in (3, 5)
    dtype = torch.float32 if version == 3 else torch.bfloat16
    numbers = torch.frombuffer(bytearray(data[1024:]), dtype=dtype)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=vocab, n_positions=positions, n_embd=width, n_layer=layers, n_head=heads,
        bos_token_id=None, eos_token_id=None))
    state = model.state_dict()
    at = 0

    def take(*shape):
        nonlocal at
        count = torch.Size(shape).numel()
        at += count
        return numbers[at - count:at].reshape(shape)

    state["transformer.wte.weight"] = state["lm_head.weight"] = take(padded, width)[:vocab]
    state["transformer.wpe.weight"] = take(positions, width)
    kinds = [("ln_1.weight", ()), ("ln_1.bias", ()), ("attn.c_attn.weight", (3, 1)), ("attn.c_attn.bias", (3,)),
             ("attn.c_proj.weight", (1, 1)), ("attn.c_proj.bias", (1,)), ("ln_2.weight", ()), ("ln_2.bias", ()),
             ("mlp.c_fc.weight", (4, 1)), ("mlp.c_fc.bias", (4,)), ("mlp.c_proj.weight", (1, 4)),
             ("mlp.c_proj.bias", (1,))]
    for name, widths in kinds:
        for layer in range(layers):
            value = take(*(w * width for w in (widths or (1,))))
            # transformers' Conv1D holds (in, out).
            state[f"transformer.h.{layer}.{name}"] = value.T.contiguous() if len(widths) == 2 else value
    state["transformer.ln_f.weight"] = take(width)
    state["transformer.ln_f.bias"] = take(width)
    assert at == numbers.numel(), "numbers are left over"
    model.load_state_dict({name: value.float() for name, value in state.items()})
    return model


def main():
    program = sys.argv[1]
    root = pathlib.Path(__file__).resolve().parent.parent
    start = sys.argv[2] if len(sys.argv) > 2 else str(root / "tests/train/data/hf_gpt2")
    original = transformers.GPT2LMHeadModel.from_pretrained(start)
    sizes = original.config
    length = min(sizes.n_positions, 64)
    tokens = torch.randint(sizes.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    expected = logits(original, tokens)
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = folder / "start.yaml"
        config.write_text(CONFIG.format(dir=folder / "run", start=start))
        subprocess.run([program, "train", config], check=True, stdout=subprocess.DEVNULL)
        for form, dtype, bound in [("hf", "fp32", 0), ("hf", "bf16", 1), ("llmc", "fp32", 0), ("llmc", "bf16", 1)]:
            out = folder / f"{form}_{dtype}"
            subprocess.run([program, "export", "--format", form, "--dtype", dtype, folder / "run", out], check=True,
                           stdout=subprocess.DEVNULL)
            if form == "hf":
                model, info = transformers.GPT2LMHeadModel.from_pretrained(out, output_loading_info=True)
                missing = set(info["missing_keys"]) | set(info["unexpected_keys"]) | set(info["mismatched_keys"])
                if missing:
                    failed = True
                    print(f"{form} {dtype}: keys that do not fit: {sorted(missing)}")
            else:
                model = read_llmc(out)
            difference = (logits(model, tokens) - expected).abs().max().item()
            failed |= not difference <= bound
            print(f"{form} {dtype}: largest difference of logits {difference:.3g}, "
                  f"largest logit {expected.abs().max().item():.3g}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
