"""What the scoreboard asks: kinds of input that losses are known to go wrong on. Each check has requests and a
criterion; the same judge reads the answers of every implementation, and the right numbers are computed in fp64."""

import math
from dataclasses import dataclass
from typing import Callable

import numpy as np

from reference import close, compare, read, solve
from values import to_json

IGNORED = -100
NAN, INF = "nan", "inf"


@dataclass
class Check:
    title: str
    criterion: str
    requests: list
    judge: Callable  # requests, answers (all "ok" unless errors are expected) -> (right, what was seen)
    errors_expected: bool = False
    cuda_only: bool = False


CHECKS = []


def check(title, criterion, requests, judge=None, **fields):
    def all_close(requests, answers):
        for request, answer in zip(requests, answers):
            good, text = compare(request, answer)
            if not good:
                return False, f"{text}" + (f" (V = {request['shape'][-1]})" if len(requests) > 4 else "")
        return True, ""
    CHECKS.append(Check(title, criterion, requests, judge or all_close, **fields))


def rows(logits, targets, dtype="fp32", shape=None, reduction="sum", **fields):
    """logits: a list of rows, or a spec with `shape`."""
    if shape is None:
        shape = [len(logits), len(logits[0])]
        logits = {"values": to_json([float(value) for row in logits for value in row])}
    if isinstance(targets, list):
        targets = {"values": targets}
    return {"call": "rows", "dtype": dtype, "shape": shape, "logits": logits, "targets": targets,
            "reduction": reduction, "want": ["logits"], **fields}


def linear(shape, dtype="fp32", reduction="sum", want=("input", "weight"), inputs=None, weight=None, targets=None,
           **fields):
    n, d, v = shape
    if isinstance(targets, list):
        targets = {"values": targets}
    return {"call": "linear", "dtype": dtype, "shape": [n, d, v], "reduction": reduction, "want": list(want),
            "inputs": inputs or {"hash": 1, "scale": 1.0}, "weight": weight or {"hash": 2, "scale": 2.0 / math.sqrt(d)},
            "targets": targets or {"hash": 3, "below": v}, **fields}


def near(answer, loss, relative=1e-5, absolute=1e-7):
    good, text = close(answer["loss"], loss, relative, absolute)
    return good, "" if good else "loss " + text


def all_of(*results):
    return next((result for result in results if not result[0]), (True, ""))


# Sizes

VOCABS = (2, 5, 7, 33, 127, 1025, 32000, 50257, 65537, 131073)
check("Any vocabulary", f"uniform bf16 logits, V of {', '.join(map(str, VOCABS))}: loss ln V to 1e-5, gradients to one "
      "bf16 ulp",
      [rows({"fill": 0}, [0, v - 1], "bf16", [2, v]) for v in VOCABS])
check("No columns beyond the vocabulary",
      "V = 5, all logits -20: loss ln 5, which zeros in padded columns would hide",
      [rows([[-20] * 5], [4])])
check("Odd sizes of a head",
      "N, D, V of 5, 3, 7 and 13, 100, 5003 in bf16: loss to 1e-2, gradients to 3 % by norm",
      [linear((5, 3, 7), "bf16"), linear((13, 100, 5003), "bf16")],
      lambda asked, answers: all_of(*(compare(request, answer, 1e-2, 0.03, norm=True)
                               for request, answer in zip(asked, answers))))
check("An empty batch", "N = 0, reduction sum: loss 0, no error",
      [rows({"values": []}, [], shape=[0, 16])], lambda asked, answers: near(answers[0], 0.0))
check("An empty batch, head", "N = 0, reduction sum: loss 0, grad_weight all 0, no error",
      [linear((0, 16, 16), targets={"values": []}, inputs={"values": []}, want=("weight",))],
      lambda asked, answers: all_of(near(answers[0], 0.0), close(answers[0]["grad_weight"], np.zeros(256), 0)))
BIG = (16385, 131072)
check("More than 2^31 logits",
      "16385 x 131072 bf16 logits, all rows but the last ignored, z_y = 12 there: loss "
      "0.590742, its gradient -0.446084",
      [rows({"fill": 0, "set": [[BIG[0] * BIG[1] - 1, 12.0]]},
            {"fill": IGNORED, "set": [[BIG[0] - 1, BIG[1] - 1]]}, "bf16", list(BIG),
            pick={"grad_logits": [BIG[0] * BIG[1] - 1, 0]})],
      lambda asked, answers: all_of(near(answers[0], 0.590742, 1e-4),
                                    close(answers[0]["grad_logits"], [-0.446084, 0], 2**-7)),
      cuda_only=True)

# Ignored rows and bad targets

BASE = [1, 2, 3, 4, 0, -1, -2, -3]
OTHER = [0.5, -1, 2, 0, 1, 0, -0.5, 3]
check("All rows ignored", "N = 4 rows that hold NaN and +inf, reduction mean: loss 0, gradients exactly 0",
      [rows([[math.nan] * 8, [math.inf] * 8, BASE, OTHER], [IGNORED] * 4, reduction="mean")],
      lambda asked, answers: all_of(near(answers[0], 0.0), close(answers[0]["grad_logits"], np.zeros(32), 0)))
check("All rows ignored, head", "N = 8, reduction mean: loss 0, gradients exactly 0",
      [linear((8, 16, 16), reduction="mean", targets=[IGNORED] * 8)],
      lambda asked, answers: all_of(near(answers[0], 0.0), close(answers[0]["grad_weight"], np.zeros(256), 0),
                             close(answers[0]["grad_input"], np.zeros(128), 0)))
check("NaN in an ignored row",
      "logits of an ignored row are NaN: loss and other gradients as without, its own exactly 0",
      [rows([BASE, [math.nan] * 8, OTHER], [3, IGNORED, 2], reduction="mean")])
check("NaN in an ignored row, head", "inputs of an ignored row are NaN: loss and gradients as without that row",
      [linear((8, 16, 16), targets=[3, 1, IGNORED, 2, 0, 5, 7, 9],
              inputs={"hash": 1, "scale": 1.0, "set": [[32 + i, NAN] for i in range(16)]})],
      lambda asked, answers: compare(asked[0], answers[0], 1e-3, 1e-2,
                              norm=True))
check("ignore_index inside the vocabulary",
      "ignore_index 2: rows with target 2 are ignored, class 2 still counts in "
      "the softmax of the others",
      [rows([BASE, OTHER], [2, 1], reduction="mean", ignore_index=2)])
check("A NaN in one valid row",
      "the loss is NaN (not a number that hides it), the other rows' gradients are right",
      [rows([BASE, [math.nan] + BASE[1:], OTHER], [3, 3, 2])],
      lambda asked, answers: all_of((bool(np.isnan(read(answers[0]["loss"]))), f"loss {answers[0]['loss']}"),
                             close(answers[0]["grad_logits"][:8] + answers[0]["grad_logits"][16:],
                                   solve(rows([BASE, OTHER], [3, 2]))[1]["logits"], 1e-5, 1e-7)))


def bad_target(title, make, good):
    """Requests in pairs: one with a bad target, then a good one, to see whether anything works afterwards."""
    bad = {"-1": -1, "V": 8, "2^32 + 1": 2**32 + 1}

    def judge(_, answers):
        seen = []
        for (name, _), first, second in zip(bad.items(), answers[::2], answers[1::2]):
            if first["status"] == "ok":
                seen.append(f"{name} passes silently, loss {first['loss']:.4g}" if isinstance(first["loss"], float)
                            else f"{name} passes silently, loss {first['loss']}")
            elif second["status"] != "ok":
                seen.append(f"after {name} nothing works: {second.get('message', second['status'])}")
            elif not compare(good, second, 1e-3, 1e-2, norm=True)[0]:
                seen.append(f"after {name} a good call is wrong")
        return not seen, "; ".join(seen)

    requests = [request for value in bad.values() for request in (make(value), good)]
    check(title, "targets -1, V and 2^32 + 1, ignore_index -100: reported as an error that a program can catch, and a "
          "good call right after it works", requests, judge, errors_expected=True)


bad_target("A target out of range", lambda bad: rows([BASE, OTHER], [3, bad]), rows([BASE, OTHER], [3, 2]))
bad_target("A target out of range, head",
           lambda bad: linear((8, 16, 8), targets=[0, 1, 2, 3, bad, 5, 6, 7]), linear((8, 16, 8)))

# Numerics of a row

MASK = -math.inf
check("Masked columns",
      "-inf logits: V = 4 with two masked columns, and 1024 masked columns before 1024 zeros: loss ln 2 "
      "and ln 1024, their gradients 0",
      [rows([[MASK, 0, 0, MASK]], [1]),
       rows({"fill": 0, "set": [[i, "-inf"] for i in range(1024)]}, [1500], shape=[1, 2048])])
check("A large common offset", "z = [2^20, 2^20 + 2, 0, ...] in fp32, y = 0: loss 2.1269280 to 1e-5",
      [rows([[2.0**20, 2.0**20 + 2] + [0] * 6], [0])])
check("Gradient of a sure row",
      "margins of 12, 15 and 20 in fp32: the target's gradient -6.1e-6, -3.1e-7, -2.1e-9 to 1e-5; "
      "bf16, margin 6.90625: -1.0005e-3 to one ulp",
      [rows([[margin, 0] + [-200] * 6], [0], dtype) for margin, dtype in
       ((12, "fp32"), (15, "fp32"), (20, "fp32"), (6.90625, "bf16"))],
      lambda asked, answers: all_of(*(close(answer["grad_logits"][:1], [-1 / (1 + math.exp(margin))], tolerance)
                               for answer, margin, tolerance in zip(answers, (12, 15, 20, 6.90625),
                                                                    (1e-5, 1e-5, 1e-5, 2**-8)))))
check("The loss is summed in fp32", "4096 bf16 rows of 8 zeros: sum 8517.393 to 2e-6",
      [rows({"fill": 0}, {"fill": 3}, "bf16", [4096, 8], pick={"grad_logits": [0]})],
      lambda asked, answers: near(answers[0], 4096 * math.log(8), 2e-6))
check("fp16 range", "70000 equal fp16 logits: loss 11.1562505 to 1e-5",
      [rows({"fill": 0}, [5], "fp16", [1, 70000], pick={"grad_logits": [5]})],
      lambda asked, answers: near(answers[0], math.log(70000)))
check("Label smoothing", "0.1 on [1, 0, 0, 0], reduction mean, beside an ignored row",
      [rows([[1, 0, 0, 0], [5, 0, 0, 0]], [0, IGNORED], reduction="mean", label_smoothing=0.1)])
check("Softcap",
      "30 on [2000, -2000], [10, 0] and a row with a -inf column: gradients 0 and never NaN, the masked column "
      "stays masked",
      [rows([[2000, -2000], [2000, -2000], [10, 0], [MASK, 1]], [0, 1, 0, 1], softcap=30.0)])
check("z-loss", "multiplier 1e-4, reduction mean over two valid rows and an ignored one",
      [rows([BASE, OTHER, BASE], [3, 2, IGNORED], reduction="mean", z_loss=1e-4)])

# Gradients of a head

MANY = linear((4096, 8, 4096), "bf16", inputs={"fill": 1}, weight={"fill": 0}, targets={"fill": 0}, want=("weight",),
              pick={"grad_weight": [0, 8]})
check("Many small terms",
      "grad_weight of 4096 bf16 rows of which each adds about -1 to one class and 1/4096 to the "
      "others: -4095 and 1 to 1 %",
      [MANY], lambda asked, answers: close(answers[0]["grad_weight"], [-4095, 1], 0.01))
check("Gradients of a head", "bf16, N = 256, D = 64, V = 1024: loss to 1e-3, gradients to 1 % by norm",
      [linear((256, 64, 1024), "bf16")],
      lambda asked, answers: compare(asked[0], answers[0], 1e-3, 0.01, norm=True))
RARE = linear((64, 16, 8192), "bf16", targets={"fill": 0}, want=("weight",))
check("Classes that are nobody's target",
      "bf16, V = 8192, every target 0: grad_weight of the other classes to 3 % by norm",
      [RARE], lambda asked, answers: rare(answers[0]))


def rare(answer):
    expected = solve(RARE)[1]["weight"].ravel()[16:]
    error = float(np.linalg.norm(read(answer["grad_weight"])[16:] - expected) / np.linalg.norm(expected))
    return error <= 0.03, f"off by {100 * error:.3g} %"


check("Bias", "grad_bias in fp32, N = 8, V = 16: loss and all three gradients to 1e-2 by norm",
      [linear((8, 16, 16), bias={"hash": 4, "scale": 1.0}, want=("input", "weight", "bias"))],
      lambda asked, answers: compare(asked[0], answers[0], 1e-3, 0.01, norm=True))

# Contracts

SMALL = linear((8, 16, 16))
check("Upstream gradient", "1024: fp32 gradients times 1024 to the bit and the loss unscaled; 0: exact zeros",
      [SMALL, {**SMALL, "upstream": [1024.0]}, {**SMALL, "upstream": [0.0]}],
      lambda asked, answers: all_of(
          *((answers[1][name] == to_json((1024 * read(answers[0][name])).tolist()), f"{name} is not 1024 times")
            for name in ("grad_input", "grad_weight")),
          (answers[1]["loss"] == answers[0]["loss"], "the loss was scaled"),
          close(answers[2]["grad_weight"], np.zeros(256), 0), close(answers[2]["grad_input"], np.zeros(128), 0)))
check("A loss per row",
      "reduction none with an upstream gradient per row: losses to 1e-3, gradients to 1e-2 by norm",
      [linear((8, 16, 16), reduction="none", upstream=[1, 0, 10, 2, 0.5, 1, 1, 3])],
      lambda asked, answers: compare(asked[0], answers[0], 1e-3, 0.01, norm=True))
check("Frozen inputs, frozen head", "one gradient asked for: the same bits as when both are",
      [SMALL, {**SMALL, "want": ["weight"]}, {**SMALL, "want": ["input"]}],
      lambda asked, answers: all_of((answers[1]["grad_weight"] == answers[0]["grad_weight"], "frozen inputs differ"),
                             (answers[2]["grad_input"] == answers[0]["grad_input"], "frozen head differs")))
check("Rows that stand apart",
      "logits are a view [N, V] of [N, 2V] with NaN between: the bits of a contiguous copy",
      [rows([BASE, OTHER], [3, 2]), rows([BASE, OTHER], [3, 2], stride=16)],
      lambda asked, answers: all_of((answers[1]["loss"] == answers[0]["loss"], f"loss {answers[1]['loss']}"),
                             (answers[1]["grad_logits"] == answers[0]["grad_logits"], "other gradients")))
check("Logits stay as they were",
      "after loss and backward (of the call that does not promise to overwrite them)",
      [rows([BASE, OTHER], [3, 2], watch_inputs=True)],
      lambda asked, answers: (answers[0]["inputs_unchanged"], "overwritten"))
check("A second backward", "over the same forward, upstream 2 both times: the same gradients to the bit",
      [linear((8, 16, 16), upstream=[2.0], second_backward=True)],
      lambda asked, answers: all_of(*((answers[0]["second"][name] == answers[0][name], f"another {name}")
                               for name in ("grad_input", "grad_weight"))))


def one_result(answers):
    count = len(set(answers[0]["digests"]))
    return count == 1, f"{count} results in 20 runs"


check("The same bits in every run", "20 runs of 512 rows of 8192 bf16 logits: loss and gradient",
      [rows({"hash": 5, "scale": 4.0}, {"hash": 6, "below": 8192}, "bf16", [512, 8192], repeat=20,
            pick={"grad_logits": [0]})], lambda asked, answers: one_result(answers))
check("The same bits in every run, head", "20 runs in bf16, N = 1024, D = 128, V = 8192: loss and both gradients",
      [linear((1024, 128, 8192), "bf16", repeat=20, pick={"grad_input": [0], "grad_weight": [0]})],
      lambda asked, answers: one_result(answers))
check("Captured in a CUDA graph",
      "a call captured after a warm-up, replayed with other targets: right loss and gradients",
      [linear((64, 16, 64), "bf16", capture={"targets": {"hash": 9, "below": 64}})],
      lambda asked, answers: compare(asked[0], answers[0], 1e-2, 0.02, norm=True),
      cuda_only=True)


# Chosen log-probabilities

def selective(logits, index, dtype="bf16", want=(), **fields):
    request = rows(logits, index, dtype, want=list(want), **fields)
    request["call"] = "selective"
    return request


check("Chosen log-probabilities",
      "of bf16 rows: -ln 8 for zeros and the right value for another row, to 1e-5; not above 0 "
      "for a sure row",
      [selective([[0] * 8, OTHER, [20] + [-200] * 7], [3, 2, 0])],
      lambda asked, answers: all_of(
          close(answers[0]["loss"], [-math.log(8), -float(solve(rows([OTHER], [2]))[0]), 0.0], 1e-5, 1e-6),
          (float(answers[0]["loss"][2]) <= 0, "above 0")))
check("Their gradient", "fp32, upstream 1 and 2: to 1e-5",
      [selective([BASE, OTHER], [3, 2], "fp32", ("logits",), upstream=[1.0, 2.0])],
      lambda asked, answers: close(answers[0]["grad_logits"],
                            -solve(rows([BASE, OTHER], [3, 2], reduction="none", upstream=[1.0, 2.0]))[1]["logits"],
                            1e-5, 1e-7))
check("Several of a row", "K = 2 with the same class twice, upstream 1 and 1: gradient 2 ([j = y] - p)",
      [selective([BASE], [3, 3], "fp32", ("logits",), indices_per_row=2, upstream=[1.0, 1.0])],
      lambda asked, answers: close(answers[0]["grad_logits"], -2 * solve(rows([BASE], [3]))[1]["logits"], 1e-5, 1e-7))
