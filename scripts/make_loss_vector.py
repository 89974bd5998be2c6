#!/usr/bin/env python3
"""Makes tests/loss/data/linear_cross_entropy.txt: losses and gradients of F.linear + F.cross_entropy in PyTorch.

    python3 scripts/make_loss_vector.py > tests/loss/data/linear_cross_entropy.txt

Everything is computed in fp64, so that the test (tests/loss/pytorch_vector.cpp) measures our fp32 alone. Inputs come from
integer formulas that the test repeats and are exact in fp32. The z-loss, softcap and logit scale are written by hand around
F.cross_entropy. Class weights together with label smoothing are left out: PyTorch defines that pair otherwise. Needs torch
(made with 2.15).
"""

import torch
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)

N, D, V = 13, 6, 19

# name, reduction, ignore_index, label_smoothing, z_loss, softcap, logit_scale, class weights, bias
CASES = [
    ("mean", "mean", -100, 0, 0, 0, 1, 0, 0),
    ("sum", "sum", -100, 0, 0, 0, 1, 0, 1),
    ("none", "none", -100, 0, 0, 0, 1, 0, 0),
    ("smoothing", "mean", -100, 0.125, 0, 0, 1, 0, 1),
    ("smoothing_none", "none", -100, 0.125, 0, 0, 1, 0, 0),
    ("weights", "mean", -100, 0, 0, 0, 1, 1, 1),
    ("weights_sum", "sum", -100, 0, 0, 0, 1, 1, 0),
    ("weights_none", "none", -100, 0, 0, 0, 1, 1, 1),
    ("ignore_inside", "mean", 4, 0, 0, 0, 1, 0, 0),
    ("z_loss", "mean", -100, 0, 0.0625, 0, 1, 0, 1),
    ("z_loss_smoothing", "sum", -100, 0.25, 0.03125, 0, 1, 0, 0),
    ("softcap", "mean", -100, 0, 0, 2, 1, 0, 1),
    ("logit_scale", "mean", -100, 0, 0, 0, 0.5, 0, 0),
    ("all_but_weights", "none", 4, 0.125, 0.0625, 3, 0.75, 0, 1),
]


def mix(stream, index):
    """32 well-mixed bits from a stream number and an index (the finaliser of MurmurHash3)."""
    x = (stream * 0x9E3779B1 + index) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def noise(stream, *shape):
    """Numbers in [-2, 2), multiples of 2^-10."""
    count = torch.Size(shape).numel()
    return torch.tensor([(mix(stream, i) >> 20) / 1024 - 2 for i in range(count)]).reshape(shape)


def row(name, values):
    print(name, *(f"{value:.17g}" for value in values.detach().flatten().tolist()))


print(f"# F.linear + F.cross_entropy in fp64, torch {torch.__version__.split('+')[0]}; made by scripts/make_loss_vector.py")
print("shape", N, D, V)
for name, reduction, ignore, smoothing, z_loss, cap, scale, weighted, biased in CASES:
    inputs, weight, bias = (t.requires_grad_() for t in (noise(1, N, D), noise(2, V, D), noise(3, V)))
    # About a fifth of the targets is ignored.
    targets = torch.tensor([ignore if mix(4, i) % 5 == 0 else mix(5, i) % V for i in range(N)])
    class_weights = noise(6, V) / 4 + 1 if weighted else None
    upstream = noise(7, N)

    z = scale * F.linear(inputs, weight, bias if biased else None)
    if cap:
        z = cap * torch.tanh(z / cap)
    losses = F.cross_entropy(z, targets, class_weights, ignore_index=ignore, label_smoothing=smoothing, reduction="none")
    valid = targets != ignore
    per_row = torch.where(valid, losses + z_loss * torch.logsumexp(z, 1) ** 2, 0.0)
    if reduction == "none":
        (per_row * upstream).sum().backward()
    elif z_loss:
        count = valid.sum() if reduction == "mean" else 1
        loss = F.cross_entropy(z, targets, ignore_index=ignore, label_smoothing=smoothing, reduction=reduction)
        (loss + z_loss * (torch.logsumexp(z, 1) ** 2 * valid).sum() / count).backward()
    else:
        F.cross_entropy(z, targets, class_weights, ignore_index=ignore, label_smoothing=smoothing,
                        reduction=reduction).backward()
    print("case", name, reduction, ignore, smoothing, z_loss, cap, scale, weighted, biased)
    row("loss", per_row)
    row("grad_input", inputs.grad)
    row("grad_weight", weight.grad)
    if biased:
        row("grad_bias", bias.grad)
