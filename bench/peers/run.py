#!/usr/bin/env python3
"""Times other implementations of the losses on the shapes of `greyhound-bench loss`.

    python3 bench/peers/run.py --set quick --json bench/results/peers/h200_quick.json

Eager PyTorch and torch.compile need torch alone; the others are measured where their package is installed:
liger-kernel, cut-cross-entropy, quack-kernels, greyhound-kernels. Each peer runs in a process of its own. What fails
(out of memory, an unsupported shape, a crash, the time limit) is a row with "error" and without figures.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shapes import SETS, Repeats, of_shape  # noqa: E402

OPERATIONS = ("cross_entropy_with_grad", "selective_log_softmax", "chunked_linear_cross_entropy")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", choices=SETS, help="several may be given (default: limits on cuda, "
                        "small on cpu); quick: some of limits and sweep, for about six minutes")
    parser.add_argument("--shape", action="append", metavar="NxDxV", help="this shape, with all operations")
    parser.add_argument("--only", action="append", metavar="PEER", help="only this peer; several may be given")
    parser.add_argument("--operation", action="append", choices=OPERATIONS, help="only this one; several may be given")
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="default: bf16 on cuda, fp32 on cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: all")
    parser.add_argument("--time-limit", type=float, default=0, metavar="SECONDS",
                        help="for everything; what is left is shared out among the peers that are left. 0: none")
    parser.add_argument("--json", help="write the rows to this file, and the environment beside it")
    return parser.parse_args()


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def environment(options, peers):
    import torch
    facts = {"command": "python3 " + shlex.join([os.path.relpath(sys.argv[0])] + sys.argv[1:]),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
             "python": platform.python_version()}
    if options.device == "cpu":
        facts["device"] = platform.processor() or platform.machine()
    else:
        properties = torch.cuda.get_device_properties(0)
        facts.update(device=properties.name, compute_capability=f"{properties.major}.{properties.minor}",
                     multiprocessors=str(properties.multi_processor_count),
                     memory_bytes=str(properties.total_memory), torch_cuda=str(torch.version.cuda),
                     driver=first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]))
    for package in ("torch", "triton", "nvidia-cutlass-dsl"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    facts["system"] = f"{platform.system()} {platform.release()}"
    facts["peers"] = {name: peer.package + " " + importlib.metadata.version(peer.package) for name, peer in peers}
    return facts


def installed(names):
    """(name, class) of the peers whose package is there, in the order of the table; says what is missing."""
    from adapters import PEERS
    unknown = set(names or []) - set(PEERS)
    if unknown:
        sys.exit(f"--only {' '.join(sorted(unknown))}: expected some of {' '.join(PEERS)}")
    found = []
    for name, peer in PEERS.items():
        if names and name not in names:
            continue
        try:
            importlib.metadata.version(peer.package)
            found.append((name, peer))
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: skipped, {peer.package} is not installed", flush=True)
    return found


class Process:
    """A worker on some items; hands its lines to `take` and ends it at the deadline."""

    def __init__(self, request, seconds):
        self.child = subprocess.Popen([sys.executable, str(HERE / "worker.py")], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        self.timed_out = False
        self.timer = threading.Timer(seconds, self.stop) if seconds else None
        if self.timer:
            self.timer.start()
        try:
            with self.child.stdin as pipe:
                json.dump(request, pipe)
        except BrokenPipeError:  # it ended before it read anything
            pass

    def stop(self):
        self.timed_out = True
        self.child.kill()

    def lines(self):
        yield from self.child.stdout
        self.child.wait()
        if self.timer:
            self.timer.cancel()

    def how_it_ended(self):
        code = self.child.returncode
        return f"the process ended with {'signal' if code < 0 else 'code'} {abs(code)}"


def run_peer(name, version, items, options, dtype, repeats, seconds, add):
    """Measures the items with one peer; `add` takes each row. Goes on behind an item that ended the process."""
    deadline = time.monotonic() + seconds if seconds else None
    left = list(enumerate(items))

    def give_up(number, why):
        item = dataclasses.asdict(items[number])
        item.pop("batch")
        add({"peer": name, "version": version, **item, "dtype": dtype, "error": why})

    while left:
        remaining = max(deadline - time.monotonic(), 1) if deadline else 0
        process = Process({"peer": name, "device": options.device, "dtype": dtype, "threads": options.threads,
                           "repeats": dataclasses.asdict(repeats),
                           "items": [(number, dataclasses.asdict(item)) for number, item in left]}, remaining)
        began, cannot, again = None, None, False
        for line in process.lines():
            if line.startswith("BEGIN "):
                began = int(line.split()[1])
            elif line.startswith("CANNOT "):
                cannot = line[7:].strip()
            elif line.startswith("AGAIN"):
                again = True
            elif line.startswith("ROW "):
                add(json.loads(line[4:]))
                left = [entry for entry in left if entry[0] > began]
                began = None
        if not left:
            return
        if process.timed_out:
            for number, _ in left:
                give_up(number, "not measured within the time limit")
            return
        if again:
            continue
        if began is None:  # it never came to an item: it cannot be loaded
            for number, _ in left:
                give_up(number, "cannot be loaded: " + (cannot or process.how_it_ended()))
            return
        give_up(began, process.how_it_ended())
        left = [entry for entry in left if entry[0] > began]


def print_row(row):
    shape = f"{row['peer']:<24} {row['operation']:<28} {row['mode']:<16} {row['N']:>6} {row['D']:>5} {row['V']:>7}"
    if "error" in row:
        print(f"{shape} {row['error']}", flush=True)
        return
    workspace = "-" if row["workspace_bytes"] is None else f"{1e-6 * row['workspace_bytes']:.1f}MB"
    print(f"{shape} {row['milliseconds']:>9.3f} ms, floor {row['floor_milliseconds']:>8.3f}, ratio "
          f"{row['ratio']:>6.3f}, {row['rate']:>8.3f} T/s, {workspace:>10}, loss off by "
          f"{row['loss_relative_error']:.1e}", flush=True)


def main():
    options = arguments()
    cuda = options.device != "cpu"
    dtype = options.dtype or ("bf16" if cuda else "fp32")
    from adapters import METHODS
    sets = options.set or ([] if options.shape else ["limits" if cuda else "small"])
    items, repeats = [], Repeats(0.5, 5, 200)
    for name in sets:
        make, repeats = SETS[name]
        items += make()
    for shape in options.shape or []:
        items += of_shape(*map(int, shape.split("x")))
    items = list(dict.fromkeys(item for item in items if not options.operation or item.operation in options.operation))
    peers = installed(options.only)
    facts = environment(options, peers)
    for name, value in facts.items():
        print(f"{name}: {value}")
    path = pathlib.Path(options.json) if options.json else None
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.stem + ".environment.json").write_text(json.dumps(facts, indent=1) + "\n")
    rows = []

    def add(row):
        print_row(row)
        rows.append(row)
        if path:  # after each row: what comes later loses nothing
            path.write_text(json.dumps(rows, indent=1) + "\n")

    begin = time.monotonic()
    for number, (name, peer) in enumerate(peers):
        mine = [item for item in items if getattr(peer, METHODS[item.operation], None)]
        seconds = 0
        if options.time_limit:
            left = options.time_limit - (time.monotonic() - begin)
            seconds = max(left, 1) / (len(peers) - number)
        run_peer(name, importlib.metadata.version(peer.package), mine, options, dtype, repeats, seconds, add)
    print(f"{len(rows)} rows in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
