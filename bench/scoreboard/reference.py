"""The right answer of a request, in fp64 (formulas: docs/loss.md), and comparisons with it."""

import numpy as np

from values import indices, numbers

BITS = {"fp32": 23, "bf16": 7, "fp16": 10}  # of the mantissa


def rounded(values, dtype):
    """To the nearest number of the dtype (normal range), as fp64."""
    if dtype == "fp16":
        return values.astype(np.float16).astype(np.float64)
    single = values.astype(np.float32)
    if dtype == "fp32":
        return single.astype(np.float64)
    bits = single.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return np.where(np.isnan(values), np.nan, bits.astype(np.uint32).view(np.float32).astype(np.float64))


def tensor(request, name, shape):
    return rounded(numbers(request[name], int(np.prod(shape))), request["dtype"]).reshape(shape)


def logits_of(request):
    shape = request["shape"]
    if request["call"] != "linear":
        return tensor(request, "logits", (shape[0], shape[-1]))
    inputs, weight = tensor(request, "inputs", shape[:2]), tensor(request, "weight", (shape[2], shape[1]))
    with np.errstate(invalid="ignore"):
        logits = inputs @ weight.T
    return logits + tensor(request, "bias", (shape[2],)) if "bias" in request else logits


def solve(request):
    """loss, gradients by name: rows that are ignored take part in nothing."""
    targets = indices(request["targets"], request["shape"][0])
    if "capture" in request:
        targets = indices(request["capture"]["targets"], request["shape"][0])
    raw = logits_of(request)
    valid = targets != request.get("ignore_index", -100)
    n, vocab = raw.shape
    cap, e = request.get("softcap", 0.0), request.get("label_smoothing", 0.0)
    raw = np.where(valid[:, None], raw, 0.0)
    y = np.where(valid, targets, 0)
    rows = np.arange(n)
    masked = np.isneginf(raw)
    with np.errstate(invalid="ignore", divide="ignore"):
        tanh = np.tanh(raw / cap) if cap else np.zeros_like(raw)
        z = np.where(masked, -np.inf, cap * tanh) if cap else raw
        top = z.max(axis=1, keepdims=True) if n else np.zeros((0, 1))
        exps = np.exp(z - top)
        total = exps.sum(axis=1, keepdims=True)
        p = exps / total
        lse = (top + np.log(total))[:, 0]
        away = np.where(masked, 0.0, top - z)
        columns = (~masked).sum(axis=1)
        loss = (1 - e) * (top[:, 0] - z[rows, y]) + e / columns * away.sum(axis=1) + np.log(total[:, 0])
        z_loss = request.get("z_loss", 0.0)
        loss = np.where(valid, loss + z_loss * lse**2, 0.0)
        k = (1 + 2 * z_loss * lse)[:, None]
        others = exps.copy()
        others[rows, y] = 0
        dz = k * p - np.where(masked, 0.0, e / columns[:, None])
        # The target's own column without the cancellation of p - 1.
        dz[rows, y] = -others.sum(axis=1) / total[:, 0] + (k[:, 0] - 1) * p[rows, y] + e - e / columns
        if cap:
            dz *= np.where(masked, 0.0, 1 - tanh**2)
    dz[~valid] = 0
    reduction = request["reduction"]
    scale = 1 / max(valid.sum(), 1) if reduction == "mean" else 1.0
    upstream = np.array(request.get("upstream", [1.0]))
    dz = dz * scale * (upstream[:, None] if reduction == "none" else upstream[0])
    gradients = {"logits": dz}
    if request["call"] == "linear":
        # A row whose gradient is 0 adds nothing, whatever its inputs hold.
        inputs = np.where(valid[:, None], tensor(request, "inputs", request["shape"][:2]), 0.0)
        weight = tensor(request, "weight", (vocab, request["shape"][1]))
        gradients = {"input": dz @ weight, "weight": dz.T @ inputs, "bias": dz.sum(axis=0)}
    return (loss if reduction == "none" else loss.sum() * scale), gradients


def read(values):
    return np.array(values, dtype=object).astype(np.float64) if values != [] else np.zeros(0)


def close(got, expected, relative, absolute=0.0):
    """Whether each number is within the tolerance, and a sentence about the worst one if not."""
    got, expected = np.atleast_1d(read(got)).ravel(), np.atleast_1d(np.asarray(expected, dtype=np.float64)).ravel()
    if got.shape != expected.shape:
        return False, f"{got.size} numbers, expected {expected.size}"
    if got.size == 0:
        return True, ""
    with np.errstate(invalid="ignore"):
        error = np.abs(got - expected)
        allowed = absolute + relative * np.abs(expected)
        bad = ~((error <= allowed) | (np.isnan(got) & np.isnan(expected)) | (got == expected))
    if not bad.any():
        return True, ""
    worst = int(np.argmax(np.where(bad, np.where(np.isnan(error), np.inf, error - allowed), -1)))
    return False, f"{got[worst]:.6g} in place of {expected[worst]:.6g}"


def distance(got, expected):
    """Relative distance of two arrays, by the Frobenius norm."""
    got, expected = read(got).ravel(), np.asarray(expected).ravel()
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def compare(request, answer, loss_tolerance=1e-5, tolerance=None, absolute=1e-7, norm=False):
    """The answer against the reference: loss, and each gradient that was asked for, number by number or by norm."""
    tolerance = 2.0**-BITS[request["dtype"]] if tolerance is None else tolerance
    tolerance = max(tolerance, 1e-5)
    loss, gradients = solve(request)
    good, text = close(answer["loss"], loss, loss_tolerance, absolute)
    if not good:
        return False, "loss " + text
    for name in request["want"]:
        got, expected = answer[f"grad_{name}"], gradients[name]
        if "pick" in request:
            expected = expected.ravel()[request["pick"][f"grad_{name}"]]
        if norm:
            error = distance(got, expected)
            good, text = error <= tolerance, f"off by {100 * error:.3g} %"
        else:
            good, text = close(got, expected, tolerance, absolute)
        if not good:
            return False, f"gradient of {name}: {text}"
    return True, ""
