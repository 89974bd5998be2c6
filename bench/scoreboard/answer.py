"""Answers requests of the scoreboard with one peer: reads {"peer", "device", "requests"} (JSON) from standard input;
writes "BEGIN number" before each request and "ANSWER {...}" after it, as greyhound-scoreboard does.

Ends when the device no longer works after a request: the caller goes on behind it in a new process."""

import json
import os
import pathlib
import sys
import traceback
import zlib

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from peer_calls import PEERS, NotInInterface  # noqa: E402
from values import indices, numbers, to_json  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Call:
    def __init__(self, peer, request, device):
        self.request, self.device, self.kind = request, device, request["call"]
        self.function = getattr(peer, self.kind, None)
        if self.function is None:
            raise NotInInterface("no such operation")
        dtype, shape = DTYPES[request["dtype"]], request["shape"]
        rows, vocab = shape[0], shape[-1]
        self.leaves = {}
        if self.kind == "linear":
            self.add_leaf("input", request["inputs"], (rows, shape[1]), dtype)
            self.add_leaf("weight", request["weight"], (vocab, shape[1]), dtype)
            if "bias" in request:
                self.add_leaf("bias", request["bias"], (vocab,), dtype)
        else:
            self.add_leaf("logits", request["logits"], (rows, vocab), dtype, request.get("stride", 0))
        per_row = request.get("indices_per_row", 0)
        self.targets = torch.empty((rows, per_row) if per_row else (rows,), dtype=torch.int64, device=device)
        self.set_targets(request["targets"])
        self.upstream = torch.tensor(request["upstream"], dtype=torch.float32) if "upstream" in request else None

    def add_leaf(self, name, spec, shape, dtype, stride=0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        stored = (shape[0], stride) if stride else shape
        memory = torch.full(stored, float("nan"), dtype=dtype, device=self.device)
        tensor = memory[:, :shape[1]] if stride else memory
        if spec.get("fill") == 0 and count >= 1 << 24:  # no copy of this size on the host
            tensor.zero_()
            flat = tensor.view(-1)
            for at, value in spec["set"]:
                flat[at] = float(value)
        else:
            tensor.copy_(torch.from_numpy(numbers(spec, count)).reshape(shape).float().to(dtype))
        self.leaves[name] = tensor.detach().requires_grad_(name in self.request["want"])

    def copies(self):
        return {name: leaf.detach().clone() for name, leaf in self.leaves.items()}

    def restore(self, copies):
        """What a peer may have overwritten."""
        with torch.no_grad():
            for name, leaf in self.leaves.items():
                leaf.copy_(copies[name])

    def set_targets(self, spec):
        self.targets.copy_(torch.from_numpy(indices(spec, self.targets.numel())).reshape(self.targets.shape))

    def forward(self):
        leaves = self.leaves
        if self.kind == "linear":
            return self.function(leaves["input"], leaves["weight"], leaves.get("bias"), self.targets, self.request)
        if self.kind == "selective":
            return self.function(leaves["logits"], self.targets)
        return self.function(leaves["logits"], self.targets, self.request)

    def backward(self, loss, again=False):
        wanted = [self.leaves[name] for name in self.request["want"]]
        if not wanted:
            return []
        upstream = torch.ones_like(loss)
        if self.upstream is not None:
            upstream = self.upstream.to(loss.device, loss.dtype).reshape(loss.shape)
        return list(torch.autograd.grad(loss, wanted, grad_outputs=upstream, retain_graph=again))

    def outputs(self, loss, gradients):
        result = {"loss": to_json(loss.detach().double().tolist())}
        for name, gradient in zip(self.request["want"], gradients):
            flat = gradient.detach().reshape(-1)
            if "pick" in self.request:
                picked = [flat[at] for at in self.request["pick"][f"grad_{name}"]]
                flat = torch.stack(picked)
            result[f"grad_{name}"] = to_json(flat.double().tolist())
        return result


def bits(loss, gradients):
    value = 0
    for tensor in [loss.detach()] + gradients:
        value = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes(), value)
    return str(value)


def captured(call):
    """The call captured in a graph after a few runs on a side stream, then replayed with other targets."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call.backward(call.forward())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = call.forward()
        gradients = call.backward(loss)
    call.set_targets(call.request["capture"]["targets"])
    graph.replay()
    return loss, gradients


def answer(peer, request, device):
    call = Call(peer, request, device)
    watched = request.get("watch_inputs", False)
    before = call.copies() if watched or "repeat" in request else {}
    second = request.get("second_backward", False)
    if "capture" in request:
        loss, gradients = captured(call)
    else:
        loss = call.forward()
        gradients = call.backward(loss, again=second)
    result = call.outputs(loss, gradients)
    if second:
        # Kept as numbers above: a second pass may write where the first has put its gradients.
        result["second"] = call.outputs(loss, call.backward(loss, again=True))
    if watched:
        same = [torch.equal(before[name].view(torch.uint8), leaf.detach().view(torch.uint8))
                for name, leaf in call.leaves.items()]
        result["inputs_unchanged"] = all(same)
    if "repeat" in request:
        digests = []
        for _ in range(request["repeat"]):
            call.restore(before)
            loss = call.forward()
            digests.append(bits(loss, call.backward(loss)))
        result["digests"] = digests
    result["status"] = "ok"
    return result


def device_works(device):
    try:
        return device.type == "cpu" or float(torch.ones(8, device=device).sum()) == 8
    except RuntimeError:
        return False


def main():
    task = json.load(sys.stdin)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes with the errors
    device = torch.device(task["device"])
    peer = PEERS[task["peer"]]()
    for request in task["requests"]:
        print(f"BEGIN {request['number']}", file=lines)
        try:
            result = answer(peer, request, device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except NotInInterface as error:
            result = {"status": "not in its interface", "message": str(error)}
        except Exception as error:  # of any library, of any kind: what the caller gets to see
            traceback.print_exc()
            result = {"status": "error", "message": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        if not device_works(device):
            result = {"status": "aborts", "message": result.get("message", "the device no longer works")}
        print("ANSWER " + json.dumps(result), file=lines)
        if result["status"] == "aborts":
            os._exit(1)
        if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
