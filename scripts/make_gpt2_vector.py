#!/usr/bin/env python3
"""Makes tests/models/data/gpt2_tiny.txt: losses and gradient norms of ten AdamW steps of a tiny GPT-2 in PyTorch.

    python3 scripts/make_gpt2_vector.py > tests/models/data/gpt2_tiny.txt

Everything is computed in fp64, so that the numbers are those of the mathematics to some twelve digits and the test measures
our fp32 alone, not the sum of two fp32 errors. Weights and tokens come from integer formulas that the test repeats
(tests/models/gpt_pytorch.cpp); the weights are multiples of 2^-12, hence exact in fp32. Needs torch (made with 2.15).
"""

import torch
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)

N_LAYER, N_HEAD, N_EMBD, BLOCK, VOCAB = 2, 3, 12, 11, 29
BATCH, TOKENS, STEPS = 3, 9, 10
Z_LOSS, LR, BETA1, BETA2, EPS, DECAY, CLIP = 1e-4, 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0
IGNORE = -100


def mix(stream, index):
    """32 well-mixed bits from a stream number and an index (the finaliser of MurmurHash3)."""
    x = (stream * 0x9E3779B1 + index) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def noise(stream, count):
    """Numbers in [-1/2, 1/2), multiples of 2^-12."""
    return torch.tensor([(mix(stream, i) >> 20) / 4096 - 0.5 for i in range(count)])


def make_parameters():
    """By name, in the order in which the streams are numbered: from 1."""
    shapes = {"wte.weight": (VOCAB, N_EMBD), "wpe.weight": (BLOCK, N_EMBD)}
    for layer in range(N_LAYER):
        h = f"h.{layer}."
        shapes[h + "ln_1.weight"] = shapes[h + "ln_1.bias"] = (N_EMBD,)
        shapes[h + "attn.c_attn.weight"], shapes[h + "attn.c_attn.bias"] = (3 * N_EMBD, N_EMBD), (3 * N_EMBD,)
        shapes[h + "attn.c_proj.weight"], shapes[h + "attn.c_proj.bias"] = (N_EMBD, N_EMBD), (N_EMBD,)
        shapes[h + "ln_2.weight"] = shapes[h + "ln_2.bias"] = (N_EMBD,)
        shapes[h + "mlp.c_fc.weight"], shapes[h + "mlp.c_fc.bias"] = (4 * N_EMBD, N_EMBD), (4 * N_EMBD,)
        shapes[h + "mlp.c_proj.weight"], shapes[h + "mlp.c_proj.bias"] = (N_EMBD, 4 * N_EMBD), (N_EMBD,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (N_EMBD,)
    parameters = {}
    for stream, (name, shape) in enumerate(shapes.items(), start=1):
        values = noise(stream, torch.Size(shape).numel()).reshape(shape)
        if name.split(".")[-2].startswith("ln_") and name.endswith("weight"):
            values = values + 1
        parameters[name] = values.requires_grad_()
    return parameters


def make_batch(step):
    """Tokens of their own for every step; about a fifth of the targets is ignored."""
    rows = range(BATCH * TOKENS)
    tokens = [mix(1000 + step, i) % VOCAB for i in rows]
    targets = [IGNORE if mix(3000 + step, i) % 5 == 0 else mix(2000 + step, i) % VOCAB for i in rows]
    return torch.tensor(tokens).reshape(BATCH, TOKENS), torch.tensor(targets)


def forward(p, tokens):
    """Logits [B T, V] of GPT-2 with a tied head."""
    x = p["wte.weight"][tokens] + p["wpe.weight"][:TOKENS]
    for layer in range(N_LAYER):
        h = f"h.{layer}."

        def linear(name, value):
            return F.linear(value, p[h + name + ".weight"], p[h + name + ".bias"])

        def norm(name, value):
            return F.layer_norm(value, (N_EMBD,), p[h + name + ".weight"], p[h + name + ".bias"], 1e-5)

        q, k, v = linear("attn.c_attn", norm("ln_1", x)).split(N_EMBD, dim=-1)
        heads = [t.reshape(BATCH, TOKENS, N_HEAD, -1).transpose(1, 2) for t in (q, k, v)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + linear("attn.c_proj", attended.transpose(1, 2).reshape(BATCH, TOKENS, N_EMBD))
        x = x + linear("mlp.c_proj", F.gelu(linear("mlp.c_fc", norm("ln_2", x)), approximate="tanh"))
    x = F.layer_norm(x, (N_EMBD,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    return (x @ p["wte.weight"].T).reshape(-1, VOCAB)


def main():
    p = make_parameters()
    decayed = [value for value in p.values() if value.dim() == 2]
    others = [value for value in p.values() if value.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LR, betas=(BETA1, BETA2), eps=EPS)
    print(f"# Made by scripts/make_gpt2_vector.py with torch {torch.__version__.split('+')[0]}, in fp64.")
    print("# step, loss with z-loss, gradient norm before clipping")
    for step in range(STEPS):
        tokens, targets = make_batch(step)
        logits = forward(p, tokens)
        valid = targets != IGNORE
        z = logits.logsumexp(dim=-1)[valid].square().sum()
        loss = (F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum") + Z_LOSS * z) / valid.sum()
        optimizer.zero_grad()
        loss.backward()
        # min(1, clip / norm), without the 1e-6 that torch.nn.utils.clip_grad_norm_ adds to the norm.
        norm = torch.sqrt(sum(value.grad.square().sum() for value in p.values()))
        for value in p.values():
            value.grad.mul_(min(1.0, CLIP / norm.item()))
        optimizer.step()
        print(f"{step} {loss.item():.15g} {norm.item():.15g}")


if __name__ == "__main__":
    main()
