"""The peers' interfaces as the scoreboard calls them: with their defaults, as a user finds them.

A peer has up to three functions, each of which passes on what its interface takes and raises NotInInterface for the
rest. `options` are the fields of a request (README.md beside this file).

    rows(logits, targets, options) -> loss
    linear(inputs, weight, bias, targets, options) -> loss
    selective(logits, index) -> log-probabilities
"""

import importlib.metadata

import torch
import torch.nn.functional as F

SWITCHED_OFF = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "softcap": 0.0}


class NotInInterface(Exception):
    pass


def translate(options, names, reductions):
    """Keyword arguments of a peer: `names` maps fields of the request to its own; others have to be switched off."""
    if options["reduction"] not in reductions:
        raise NotInInterface(f"no reduction {options['reduction']}")
    arguments = {"reduction": options["reduction"]}
    for field, off in SWITCHED_OFF.items():
        value = options.get(field, off)
        if field in names:
            if value != off:
                arguments[names[field]] = value
        elif value != off:
            raise NotInInterface(f"no {field}")
    return arguments


def without_bias(bias):
    if bias is not None:
        raise NotInInterface("no bias")


ALL, SCALARS = ("mean", "sum", "none"), ("mean", "sum")


class Eager:
    package = "torch"
    label = "PyTorch"
    names = {"ignore_index": "ignore_index", "label_smoothing": "label_smoothing"}

    def __init__(self):
        self.cross_entropy = lambda logits, targets, **keywords: F.cross_entropy(logits.float(), targets, **keywords)
        self.linear_cross_entropy = lambda inputs, weight, bias, targets, **keywords: F.cross_entropy(
            F.linear(inputs, weight, bias).float(), targets, **keywords)
        self.log_probabilities = lambda logits, index: torch.gather(logits.log_softmax(-1), -1, index)

    def rows(self, logits, targets, options):
        return self.cross_entropy(logits, targets, **translate(options, self.names, ALL))

    def linear(self, inputs, weight, bias, targets, options):
        return self.linear_cross_entropy(inputs, weight, bias, targets, **translate(options, self.names, ALL))

    def selective(self, logits, index):
        flat = index.dim() < logits.dim()
        out = self.log_probabilities(logits, index.unsqueeze(-1) if flat else index)
        return out.squeeze(-1) if flat else out


class Compiled(Eager):
    label = "torch.compile"

    def __init__(self):
        super().__init__()
        torch._dynamo.config.cache_size_limit = 256
        for name in ("cross_entropy", "linear_cross_entropy", "log_probabilities"):
            setattr(self, name, torch.compile(getattr(self, name)))


class Liger:
    package = "liger-kernel"
    label = "Liger"
    names = {"ignore_index": "ignore_index", "label_smoothing": "label_smoothing", "z_loss": "lse_square_scale",
             "softcap": "softcap"}

    def __init__(self):
        from liger_kernel.transformers.functional import liger_cross_entropy, liger_fused_linear_cross_entropy
        self.cross_entropy, self.linear_cross_entropy = liger_cross_entropy, liger_fused_linear_cross_entropy

    def rows(self, logits, targets, options):
        return self.cross_entropy(logits, targets, **translate(options, self.names, ALL))

    def linear(self, inputs, weight, bias, targets, options):
        return self.linear_cross_entropy(inputs, weight, targets, bias=bias, **translate(options, self.names, ALL))


class CutCrossEntropy:
    package = "cut-cross-entropy"
    label = "Cut Cross-Entropy"
    names = {"ignore_index": "ignore_index", "softcap": "softcap"}

    def __init__(self):
        from cut_cross_entropy import linear_cross_entropy
        self.linear_cross_entropy = linear_cross_entropy

    def linear(self, inputs, weight, bias, targets, options):
        arguments = translate(options, self.names, ALL)
        if bias is not None:
            arguments["bias"] = bias
        return self.linear_cross_entropy(inputs, weight, targets, **arguments)


class Quack:
    package = "quack-kernels"
    label = "Quack"
    names = {"ignore_index": "ignore_index"}

    def __init__(self):
        from quack.cross_entropy import cross_entropy
        from quack.linear_cross_entropy import chunked_linear_cross_entropy
        self.cross_entropy, self.linear_cross_entropy = cross_entropy, chunked_linear_cross_entropy

    def rows(self, logits, targets, options):
        return self.cross_entropy(logits, targets, **translate(options, self.names, ALL))

    def linear(self, inputs, weight, bias, targets, options):
        without_bias(bias)
        # tuned: only which kernel runs, and minutes of compiling for each shape.
        return self.linear_cross_entropy(inputs, weight, targets, tuned=False,
                                         **translate(options, self.names, SCALARS))


class PythonGreyhound:
    package = "greyhound-kernels"
    label = "Python Greyhound"
    names = {"ignore_index": "ignore_index", "z_loss": "z_loss_multiplier"}

    def __init__(self):
        from greyhound.nn import functional
        self.functional = functional

    def rows(self, logits, targets, options):
        return self.functional.cross_entropy(logits, targets, **translate(options, self.names, SCALARS))

    def linear(self, inputs, weight, bias, targets, options):
        without_bias(bias)
        return self.functional.chunked_linear_cross_entropy(inputs, weight, targets,
                                                            **translate(options, self.names, SCALARS))

    def selective(self, logits, index):
        if index.dim() == logits.dim():
            raise NotInInterface("one index per row")
        return self.functional.selective_log_softmax(logits, index)


PEERS = {"torch_eager": Eager, "torch_compile": Compiled, "liger": Liger, "cut_cross_entropy": CutCrossEntropy,
         "quack": Quack, "greyhound_python": PythonGreyhound}


def installed():
    """name -> version of the peers whose package is there."""
    found = {}
    for name, peer in PEERS.items():
        try:
            found[name] = importlib.metadata.version(peer.package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found
