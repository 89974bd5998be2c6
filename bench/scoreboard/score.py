#!/usr/bin/env python3
"""Scores Greyhound and the installed peers on the checks of cases.py.

    python3 bench/scoreboard/score.py --ours build/bin/greyhound-scoreboard --device cuda \\
        --json bench/results/scoreboard/h200.json

Each implementation answers in a process of its own, all of them side by side; one that dies is started again behind
the request it died at. bench/scoreboard/table.py makes docs/correctness.md of the result.
"""

import argparse
import concurrent.futures
import datetime
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
from cases import CHECKS  # noqa: E402

RIGHT, WRONG, REFUSES, ABORTS, NOT_TAKEN, NOT_RUN = "right", "wrong", "refuses", "aborts", "not taken", "not run"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", metavar="PROGRAM", help="greyhound-scoreboard; left out: only the peers")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", action="append", metavar="NAME", help="greyhound or a peer; several may be given")
    parser.add_argument("--check", action="append", metavar="TEXT", help="checks whose title contains this")
    parser.add_argument("--time-limit", type=float, default=0, metavar="SECONDS", help="for each implementation")
    parser.add_argument("--json", help="write the verdicts to this file")
    parser.add_argument("--logs", help="folder for what the implementations print to standard error")
    return parser.parse_args()


def numbered(checks):
    """All requests, each with a number, and which numbers belong to each check."""
    requests, ranges = [], []
    for entry in checks:
        ranges.append(range(len(requests), len(requests) + len(entry.requests)))
        for request in entry.requests:
            requests.append({"number": len(requests), **request})
    return requests, ranges


class Implementation:
    def __init__(self, name, command, version, task, log):
        self.name, self.command, self.version, self.task, self.log = name, command, version, task, log

    def run(self, requests, seconds, progress):
        """number -> answer. Goes on behind a request that ended the process."""
        deadline = time.monotonic() + seconds if seconds else None
        answers, left = {}, requests
        while left:
            child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                     text=True)
            timer = threading.Timer(max(deadline - time.monotonic(), 1), child.kill) if deadline else None
            if timer:
                timer.start()
            try:
                with child.stdin as pipe:
                    json.dump(self.task(left), pipe)
            except BrokenPipeError:  # it ended before it read anything
                pass
            began = None
            for line in child.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "VERSION":
                    self.version = rest
                elif word == "BEGIN":
                    began = int(rest)
                elif word == "ANSWER":
                    answers[began] = json.loads(rest)
                    progress(self.name, began, answers[began])
            code = child.wait()
            if timer:
                timer.cancel()
            if deadline and time.monotonic() >= deadline:
                break
            if began is None:
                return answers, f"could not be started (code {code}; see its log)"
            if began not in answers:
                how = f"signal {-code}" if code < 0 else f"code {code}"
                answers[began] = {"status": "aborts", "message": f"the process ended with {how}"}
                progress(self.name, began, answers[began])
            left = [request for request in left if request["number"] > began]
        return answers, "the time limit" if left else ""


def verdict(entry, answers, reason):
    if any(answer is None for answer in answers):
        return NOT_RUN, reason
    for status, result in (("not in its interface", NOT_TAKEN), ("aborts", ABORTS)):
        for answer in answers:
            if answer["status"] == status:
                return result, answer["message"]
    if not entry.errors_expected:
        for answer in answers:
            if answer["status"] == "error":
                return REFUSES, answer["message"]
    try:
        right, seen = entry.judge(entry.requests, answers)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        return WRONG, f"an answer of another form: {type(error).__name__}: {error}"
    return (RIGHT, "") if right else (WRONG, seen)


def device_facts(options):
    if options.device == "cpu":
        return {"device": next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo")
                                if line.startswith("model name")), platform.machine())}
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0].split(", ")
    return {"device": name, "driver": driver}


def implementations(options, log):
    found = []
    if options.ours and (not options.only or "greyhound" in options.only):
        found.append(Implementation("greyhound", [options.ours, "--device", options.device], "", lambda r: r,
                                    log("greyhound")))
    try:
        from peer_calls import PEERS, installed
    except ImportError:
        print("no peers: torch is not installed")
        return found, {}
    versions = installed()
    for name in PEERS:
        if options.only and name not in options.only:
            continue
        if name not in versions:
            print(f"{name}: skipped, {PEERS[name].package} is not installed")
            continue
        task = lambda requests, name=name: {"peer": name, "device": options.device, "requests": requests}  # noqa: E731
        found.append(Implementation(name, [sys.executable, str(HERE / "answer.py")], versions[name], task, log(name)))
    return found, {name: peer.label for name, peer in PEERS.items()}


def main():
    options = arguments()
    checks = [entry for entry in CHECKS if options.device == "cuda" or not entry.cuda_only]
    if options.check:
        checks = [entry for entry in checks if any(text in entry.title for text in options.check)]
    requests, ranges = numbered(checks)

    def log(name):
        if not options.logs:
            return subprocess.DEVNULL
        pathlib.Path(options.logs).mkdir(parents=True, exist_ok=True)
        return open(pathlib.Path(options.logs) / f"{name}.log", "w")

    title_of = {number: entry.title for entry, numbers in zip(checks, ranges) for number in numbers}

    def progress(name, number, answer):
        print(f"{name}: {title_of[number]}: {answer['status']} {answer.get('message', '')}"[:200], flush=True)

    found, labels = implementations(options, log)
    labels["greyhound"] = "Greyhound"
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(len(found), 1)) as pool:
        running = {one.name: pool.submit(one.run, requests, options.time_limit, progress) for one in found}
        results = {name: future.result() for name, future in running.items()}

    facts = {"command": "python3 " + shlex.join([os.path.relpath(sys.argv[0])] + sys.argv[1:]),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
             **device_facts(options),
             "versions": {one.name: one.version for one in found}}
    verdicts = []
    for entry, numbers in zip(checks, ranges):
        row = {"check": entry.title, "criterion": entry.criterion, "verdicts": {}}
        for one in found:
            answers, reason = results[one.name]
            result, seen = verdict(entry, [answers.get(number) for number in numbers], reason)
            row["verdicts"][one.name] = {"verdict": result, **({"seen": seen} if seen else {})}
        verdicts.append(row)
    for one in found:
        counts = [row["verdicts"][one.name]["verdict"] for row in verdicts]
        print(f"{labels[one.name]} {one.version}: " + ", ".join(
            f"{counts.count(kind)} {kind}" for kind in (RIGHT, WRONG, REFUSES, ABORTS, NOT_TAKEN, NOT_RUN)
            if kind in counts))
    print(f"{len(checks)} checks in {time.monotonic() - begin:.1f} s")
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"environment": facts, "labels": {one.name: labels[one.name] for one in found},
                                    "checks": verdicts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
