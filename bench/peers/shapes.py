"""What is measured: the sets of greyhound-bench (bench/loss.cpp), and `quick`, some of their shapes for a short run."""

from dataclasses import dataclass

LARGE_VOCABS = (65536, 100352, 128256, 152064, 200064)


@dataclass(frozen=True)
class Item:
    """One figure: an operation on one shape. The logits of row operations are [batch, N / batch, V]."""

    operation: str
    mode: str  # "forward" or "forward+backward"
    N: int
    D: int  # 0 where there is none
    V: int
    batch: int = 1


@dataclass(frozen=True)
class Repeats:
    """As many calls as fill `seconds`, but between the two bounds."""

    seconds: float
    least: int
    most: int


def rows(operation, shapes):
    mode = "forward+backward" if operation == "cross_entropy_with_grad" else "forward"
    return [Item(operation, mode, batch * positions, 0, vocab, batch) for batch, positions, vocab in shapes]


def linear(shapes, modes=("forward+backward", "forward")):
    return [Item("chunked_linear_cross_entropy", mode, n, d, v) for n, d, v in shapes for mode in modes]


def limits():
    row_shapes = [(1, 8192, vocab) for vocab in (32000, 50304) + LARGE_VOCABS]
    return (rows("cross_entropy_with_grad", row_shapes) + rows("selective_log_softmax", row_shapes) +
            linear([(8192, 768, 50304), (8192, 1024, 128256), (8192, 2048, 128256), (8192, 4096, 128256),
                    (8192, 4096, 32000), (8192, 8192, 128256)]))


def sweep():
    return (rows("cross_entropy_with_grad", [(1, n, v) for n in (2048, 4096, 8192) for v in LARGE_VOCABS]) +
            rows("selective_log_softmax", [(8, n, v) for n in (2048, 4096, 8192) for v in LARGE_VOCABS]) +
            linear([(8192, d, v) for d in (1024, 2048, 4096, 8192) for v in LARGE_VOCABS]))


def quick():
    few = (65536, 128256, 200064)
    return (linear([(8192, d, v) for d in (1024, 4096) for v in few], ("forward+backward",)) +
            linear([(8192, 4096, 128256)], ("forward",)) +
            rows("cross_entropy_with_grad", [(1, 8192, v) for v in (32000,) + few]) +
            rows("selective_log_softmax", [(1, 8192, v) for v in (32000,) + few]))


def of_shape(n, d, v):
    return (rows("cross_entropy_with_grad", [(1, n, v)]) + rows("selective_log_softmax", [(1, n, v)]) +
            linear([(n, d, v)]))


def small():
    return of_shape(768, 128, 256) + of_shape(256, 768, 50304)


SETS = {
    "limits": (limits, Repeats(0.4, 7, 300)),
    "sweep": (sweep, Repeats(0.15, 5, 100)),
    "quick": (quick, Repeats(0.25, 5, 100)),
    "small": (small, Repeats(0.5, 5, 200)),
}
