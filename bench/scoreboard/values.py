"""The numbers of a request, as values.cpp makes them, and results in JSON, which has no NaN and no infinity."""

import math

import numpy as np


def number(value):
    return float(value)  # also of "nan", "inf", "-inf"


def to_json(values):
    """Nested lists of numbers with "nan", "inf", "-inf" where JSON has no number."""
    if isinstance(values, (list, tuple)):
        return [to_json(value) for value in values]
    value = float(values)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def hashed(count, seed):
    element = np.arange(count, dtype=np.uint64)
    bits = (element * np.uint64(2654435761) + np.uint64(seed * 40503 + 12345)) & np.uint64(0xFFFFFFFF)
    bits ^= bits >> np.uint64(16)
    bits = (bits * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    return bits ^ (bits >> np.uint64(16))


def numbers(spec, count):
    if "values" in spec:
        values = np.array([number(value) for value in spec["values"]], dtype=np.float64)
    elif "fill" in spec:
        values = np.full(count, number(spec["fill"]))
    else:
        values = spec["scale"] * (hashed(count, spec["hash"]).astype(np.float64) * 2.0**-31 - 1)
    for at, value in spec.get("set", []):
        values[at] = number(value)
    assert len(values) == count, (len(values), count)
    return values


def indices(spec, count):
    if "values" in spec:
        values = np.array(spec["values"], dtype=np.int64)
    elif "fill" in spec:
        values = np.full(count, spec["fill"], dtype=np.int64)
    else:
        values = (hashed(count, spec["hash"]) % np.uint64(spec["below"])).astype(np.int64)
    for at, value in spec.get("set", []):
        values[at] = value
    assert len(values) == count, (len(values), count)
    return values
