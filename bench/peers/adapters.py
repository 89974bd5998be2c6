"""The peers: how each is called for the operations that greyhound-bench times.

A peer is a class with some of these methods. Each does what a training step with that library does, up to gradients
in tensors; `torch.autograd.grad` returns them without the copy into `.grad` that leaves would add.

    cross_entropy_with_grad(logits [N, V], targets [N]) -> sum of losses, [grad_logits]
    selective_log_softmax(logits [B, T, V], index [B, T]) -> log-probabilities [B, T]
    linear(inputs [N, D], weight [V, D], targets [N], gradients) -> mean of losses, [grad_input, grad_weight] or []

Its settings are those that match what Greyhound does where there is a choice: grad_weight summed in fp32.
"""

import importlib.metadata

import torch
import torch.nn.functional as F


def gradients_of(loss, *tensors):
    return list(torch.autograd.grad(loss, tensors))


class Peer:
    package = None  # of the Python package index; its version goes into the rows
    settings = {}   # operation -> text: what is not the library's default

    def version(self):
        return importlib.metadata.version(self.package)

    def requirements(self):
        """Name of a package that the peer depends on -> version."""
        return {}


class Eager(Peer):
    package = "torch"
    settings = {"cross_entropy_with_grad": "logits.float()", "chunked_linear_cross_entropy": "logits.float()",
                "selective_log_softmax": "log_softmax in the logits' dtype, gather"}

    @staticmethod
    def row_loss(logits, targets):
        return F.cross_entropy(logits.float(), targets, reduction="sum")

    @staticmethod
    def log_probabilities(logits, index):
        return torch.gather(logits.log_softmax(dim=-1), -1, index.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def linear_loss(inputs, weight, targets):
        return F.cross_entropy(F.linear(inputs, weight).float(), targets)

    def cross_entropy_with_grad(self, logits, targets):
        loss = self.row_loss(logits, targets)
        return loss.detach(), gradients_of(loss, logits)

    def selective_log_softmax(self, logits, index):
        return self.log_probabilities(logits, index)

    def linear(self, inputs, weight, targets, gradients):
        loss = self.linear_loss(inputs, weight, targets)
        return loss.detach(), gradients_of(loss, inputs, weight) if gradients else []


class Compiled(Eager):
    settings = {name: text + ", torch.compile" for name, text in Eager.settings.items()}

    def __init__(self):
        torch._dynamo.config.cache_size_limit = 256  # one compilation per shape
        torch._dynamo.config.automatic_dynamic_shapes = False
        self.row_loss = torch.compile(Eager.row_loss)
        self.log_probabilities = torch.compile(Eager.log_probabilities)
        self.linear_loss = torch.compile(Eager.linear_loss)


class Liger(Peer):
    package = "liger-kernel"
    settings = {"chunked_linear_cross_entropy": "accum_dtype=float32"}

    def __init__(self):
        from liger_kernel.transformers.functional import liger_cross_entropy, liger_fused_linear_cross_entropy
        self.row_loss, self.linear_loss = liger_cross_entropy, liger_fused_linear_cross_entropy

    def cross_entropy_with_grad(self, logits, targets):
        loss = self.row_loss(logits, targets, reduction="sum")
        return loss.detach(), gradients_of(loss, logits)

    def linear(self, inputs, weight, targets, gradients):
        loss = self.linear_loss(inputs, weight, targets, accum_dtype=torch.float32)
        return loss.detach(), gradients_of(loss, inputs, weight) if gradients else []


class CutCrossEntropy(Peer):
    package = "cut-cross-entropy"
    settings = {"chunked_linear_cross_entropy": "impl=cce: gradients below a threshold are skipped"}
    implementation = "cce"

    def __init__(self):
        from cut_cross_entropy import linear_cross_entropy
        self.linear_loss = linear_cross_entropy

    def linear(self, inputs, weight, targets, gradients):
        loss = self.linear_loss(inputs, weight, targets, impl=self.implementation)
        return loss.detach(), gradients_of(loss, inputs, weight) if gradients else []


class CutCrossEntropyExact(CutCrossEntropy):
    settings = {"chunked_linear_cross_entropy": "impl=cce_exact: nothing skipped, summed in fp32"}
    implementation = "cce_exact"


class Quack(Peer):
    package = "quack-kernels"
    settings = {"cross_entropy_with_grad": "cross_entropy_fwd with return_dx, in place",
                "selective_log_softmax": "minus cross_entropy of each row",
                "chunked_linear_cross_entropy": "tuned=False"}
    tuned = False

    def __init__(self):
        from quack.cross_entropy import cross_entropy, cross_entropy_fwd
        from quack.linear_cross_entropy import chunked_linear_cross_entropy
        self.row_loss, self.row_kernel = cross_entropy, cross_entropy_fwd
        self.linear_loss = chunked_linear_cross_entropy

    def requirements(self):
        return {"nvidia-cutlass-dsl": importlib.metadata.version("nvidia-cutlass-dsl")}

    def cross_entropy_with_grad(self, logits, targets):
        losses, gradient = self.row_kernel(logits.detach(), targets, return_dx=True, inplace_backward=True)
        return losses.sum(), [gradient]

    def selective_log_softmax(self, logits, index):
        return -self.row_loss(logits.flatten(0, -2), index.flatten(), reduction="none").view(index.shape)

    def linear(self, inputs, weight, targets, gradients):
        loss = self.linear_loss(inputs, weight, targets, tuned=self.tuned)
        return loss.detach(), gradients_of(loss, inputs, weight) if gradients else []


class QuackTuned(Quack):
    """With its products tuned, which compiles and times dozens of kernels for each new shape."""

    settings = {"chunked_linear_cross_entropy": "tuned=True"}
    tuned = True
    cross_entropy_with_grad = None  # tuning is about products
    selective_log_softmax = None


class PythonGreyhound(Peer):
    package = "greyhound-kernels"
    settings = {"cross_entropy_with_grad": "cross_entropy_with_grad_kernel, in place"}

    def __init__(self):
        from greyhound.kernels.cross_entropy import cross_entropy_with_grad_kernel
        from greyhound.nn import functional
        self.kernel, self.functional = cross_entropy_with_grad_kernel, functional

    def requirements(self):
        return {"nvidia-cutlass-dsl": importlib.metadata.version("nvidia-cutlass-dsl")}

    def cross_entropy_with_grad(self, logits, targets):
        raw = logits.detach()
        return self.kernel(raw, targets, 0.0, -100)[0], [raw]

    def selective_log_softmax(self, logits, index):
        return self.functional.selective_log_softmax(logits, index)

    def linear(self, inputs, weight, targets, gradients):
        loss = self.functional.chunked_linear_cross_entropy(inputs, weight, targets)
        return loss.detach(), gradients_of(loss, inputs, weight) if gradients else []


# Those that compile for long come last, so that a time limit costs the others nothing.
PEERS = {
    "torch_eager": Eager,
    "greyhound_python": PythonGreyhound,
    "liger": Liger,
    "quack": Quack,
    "torch_compile": Compiled,
    "cut_cross_entropy": CutCrossEntropy,
    "cut_cross_entropy_exact": CutCrossEntropyExact,
    "quack_tuned": QuackTuned,
}

METHODS = {"cross_entropy_with_grad": "cross_entropy_with_grad", "selective_log_softmax": "selective_log_softmax",
           "chunked_linear_cross_entropy": "linear"}
