"""Timing and memory, as greyhound-bench measures them (bench/timing.cpp): work and floor in turn, each call between two
device events of the stream, all calls enqueued before the first is waited for, medians."""

import gc
import time

import torch

BLOCK = 8 * 131101  # as bench/random_data.cpp: a multiple of 8 and of no vocabulary, so that rows differ


def fill_normal(tensor, scale, seed):
    """Numbers of about a normal distribution: a million of them, repeated."""
    flat = tensor.view(-1)
    count = min(flat.numel(), BLOCK)
    generator = torch.Generator().manual_seed(seed)
    flat[:count] = (scale * torch.randn(count, generator=generator)).to(tensor.device, tensor.dtype)
    while count < flat.numel():
        more = min(count, flat.numel() - count)
        flat[count:count + more] = flat[:more]
        count += more
    return tensor


def random_indices(shape, vocab, seed, device):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, shape, generator=generator).to(device)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_in_turn(works, rounds, device):
    """Milliseconds of each work in each round, [work][round]."""
    times = [[] for _ in works]
    if device.type != "cuda":
        for _ in range(rounds):
            for i, work in enumerate(works):
                begin = time.perf_counter()
                work()
                times[i].append(1e3 * (time.perf_counter() - begin))
        return times
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(works) * rounds + 1)]
    at = 0
    events[0].record()
    for _ in range(rounds):
        for work in works:
            work()
            at += 1
            events[at].record()
    torch.cuda.synchronize(device)
    for i in range(at):
        times[i % len(works)].append(events[i].elapsed_time(events[i + 1]))
    return times


def summary(times):
    times = sorted(times)
    return [times[round(fraction * (len(times) - 1))] for fraction in (0.5, 0.1, 0.9)]


def compare(work, floor, repeats, device):
    """(work, floor, repeats): each of the first two as [median, 10th percentile, 90th percentile]."""
    works = [work, floor]
    # The first round compiles and chooses; the second says how long a round takes.
    time_in_turn(works, 1, device)
    estimate = time_in_turn(works, 1, device)
    seconds = max(1e-3 * (estimate[0][0] + estimate[1][0]), 1e-9)
    rounds = int(min(max(repeats.seconds / seconds, repeats.least), repeats.most))
    times = time_in_turn(works, rounds, device)
    return summary(times[0]), summary(times[1]), rounds


def storages(tensors):
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def peak_memory(work, existing, device):
    """(bytes of one call beyond what existed and the gradients that it returns, bytes of those gradients).

    `work` returns its gradients; one that lies in memory of `existing` counts as no new bytes. To be called once the
    work has run: what a library allocates once and keeps is not counted. None on the CPU, which keeps no such record.
    """
    if device.type != "cuda":
        return None, None
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    gradients = work()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    known = storages(existing)
    bytes_of_gradients = sum(size for at, size in storages(gradients).items() if at not in known)
    return max(peak - bytes_of_gradients, 0), bytes_of_gradients
