"""Measures one peer, in a process of its own: a fault on the device ends this process, not the run.

Reads a request (JSON) on standard input and answers with lines `ROW {...}`, a row of results each; `BEGIN i` before
item i says which one a process died at.
"""

import gc
import json
import os
import pathlib
import sys
import traceback

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from adapters import PEERS  # noqa: E402
from harness import compare, fill_normal, peak_memory, random_indices  # noqa: E402
from shapes import Item, Repeats  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class RowProblem:
    """Logits that exist; the copy that is the floor also puts back what a gradient in place has overwritten."""

    def __init__(self, peer, item, dtype, device):
        shape = (item.batch, item.N // item.batch, item.V)
        self.source = fill_normal(torch.empty(shape, dtype=dtype, device=device), 1.0, 1)
        self.logits = self.source.clone()
        self.targets = random_indices(shape[:2], item.V, 2, device)
        self.peer, self.item = peer, item
        self.existing = [self.source, self.logits, self.targets]
        self.reads_only = item.mode == "forward"
        if not self.reads_only:
            self.logits = self.logits.view(item.N, item.V).requires_grad_(True)
            self.targets = self.targets.view(item.N)

    def result(self):
        """(a number to compare with the expected one, gradients)"""
        if self.reads_only:
            with torch.no_grad():
                return -self.peer.selective_log_softmax(self.logits, self.targets), []
        return self.peer.cross_entropy_with_grad(self.logits, self.targets)

    def floor(self):
        with torch.no_grad():
            self.logits.copy_(self.source.view(self.logits.shape))

    def expected(self):
        logits, targets = self.source.view(-1, self.item.V), self.targets.view(-1)
        return sum(F.cross_entropy(z.float(), y, reduction="sum").double()
                   for z, y in zip(logits.split(256), targets.split(256)))

    def floor_share(self):
        return 0.5 if self.reads_only else 1.0  # one read: half of what a copy moves

    def rate(self, milliseconds):
        return (1 if self.reads_only else 2) * 1e-9 * self.source.nbytes / milliseconds


class LinearProblem:
    """Inputs and a head; the floor is the bare products of the unchunked shape, grad_weight in fp32."""

    def __init__(self, peer, item, dtype, device):
        n, d, v = item.N, item.D, item.V
        self.gradients = item.mode == "forward+backward"
        self.inputs = fill_normal(torch.empty(n, d, dtype=dtype, device=device), 1.0, 1)
        self.weight = fill_normal(torch.empty(v, d, dtype=dtype, device=device), d**-0.5, 2)
        self.targets = random_indices((n,), v, 3, device)
        self.peer, self.item, self.device = peer, item, device
        # The floor's buffers. The gradient is that of these very logits: numbers of another kind draw another power.
        self.logits = self.inputs @ self.weight.T
        self.grad_input = torch.empty_like(self.inputs)
        self.grad_weight = torch.empty(v, d, dtype=torch.float32, device=device)
        self.dlogits = torch.empty_like(self.logits)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        for begin in range(0, n, 256):
            rows = slice(begin, begin + 256)
            z, y = self.logits[rows].float(), self.targets[rows]
            self.loss_sum += F.cross_entropy(z, y, reduction="sum").double()
            probabilities = z.softmax(-1)
            probabilities[torch.arange(len(y), device=device), y] -= 1
            self.dlogits[rows] = probabilities / n
        self.existing = [self.inputs, self.weight, self.targets]
        self.inputs.requires_grad_(self.gradients)
        self.weight.requires_grad_(self.gradients)

    def result(self):
        if self.gradients:
            return self.peer.linear(self.inputs, self.weight, self.targets, True)
        with torch.no_grad():
            return self.peer.linear(self.inputs, self.weight, self.targets, False)

    def floor(self):
        with torch.no_grad():
            torch.mm(self.inputs, self.weight.T, out=self.logits)
            if not self.gradients:
                return
            torch.mm(self.dlogits, self.weight, out=self.grad_input)
            if self.device.type == "cuda" and self.dlogits.dtype != torch.float32:
                torch.mm(self.dlogits.T, self.inputs, out_dtype=torch.float32, out=self.grad_weight)
            else:
                torch.mm(self.dlogits.T, self.inputs)

    def expected(self):
        return self.loss_sum / self.item.N

    def floor_share(self):
        return 1.0

    def rate(self, milliseconds):
        return (6 if self.gradients else 2) * self.item.N * self.item.D * self.item.V * 1e-9 / milliseconds


def measure(peer, item, dtype, repeats, device):
    problem = (LinearProblem if item.D else RowProblem)(peer, item, DTYPES[dtype], device)
    expected = float(problem.expected())
    problem.floor()
    loss = float(problem.result()[0].double().sum())
    work, floor, rounds = compare(lambda: problem.result(), problem.floor, repeats, device)
    floor = [problem.floor_share() * time for time in floor]
    problem.floor()
    workspace, gradient_bytes = peak_memory(lambda: problem.result()[1], problem.existing, device)
    return {
        "milliseconds": work[0], "floor_milliseconds": floor[0], "ratio": work[0] / floor[0],
        "rate": problem.rate(work[0]), "workspace_bytes": workspace, "milliseconds_p10_p90": work[1:],
        "floor_milliseconds_p10_p90": floor[1:], "repeats": rounds, "gradient_bytes": gradient_bytes,
        "loss_relative_error": abs(loss - expected) / abs(expected),
    }


def one_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def main():
    request = json.load(sys.stdin)
    rows = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes with the errors
    device = torch.device(request["device"])
    if device.type == "cpu" and request["threads"]:
        torch.set_num_threads(request["threads"])
    name, repeats = request["peer"], Repeats(**request["repeats"])
    try:
        peer = PEERS[name]()
    except Exception as error:
        traceback.print_exc()
        print(f"CANNOT {one_line(error)}", file=rows)
        return
    for number, fields in request["items"]:
        item = Item(**fields)
        print(f"BEGIN {number}", file=rows)
        head = {"peer": name, "version": peer.version(), "setting": peer.settings.get(item.operation, "defaults"),
                "operation": item.operation, "mode": item.mode, "N": item.N, "D": item.D, "V": item.V,
                "dtype": request["dtype"]}
        try:
            head.update(measure(peer, item, request["dtype"], repeats, device))
        except Exception as error:  # of any library, of any kind: it is this row's result
            traceback.print_exc()
            head["error"] = one_line(error)
        print("ROW " + json.dumps(head), file=rows)
        gc.collect()
        try:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
        except RuntimeError:  # after a fault on the device nothing works any more in this process
            print("AGAIN", file=rows)
            os._exit(1)


if __name__ == "__main__":
    main()
