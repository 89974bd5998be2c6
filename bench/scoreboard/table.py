#!/usr/bin/env python3
"""Makes docs/correctness.md of what score.py wrote, one table per file.

    python3 bench/scoreboard/table.py bench/results/scoreboard/*.json > docs/correctness.md
"""

import json
import pathlib
import sys

CELLS = {"right": "right", "wrong": "**wrong**", "refuses": "refuses", "aborts": "**aborts**", "not taken": "–",
         "not run": "not run"}

HEAD = """# Correctness, beside other implementations

Kinds of input that losses are known to go wrong on, given to Greyhound and to other implementations by one program and
judged by one criterion. The right answers are computed in fp64. Made by `bench/scoreboard`
([how to repeat it](../bench/README.md#the-scoreboard)); do not edit.

| cell | |
|---|---|
| right | the criterion holds |
| **wrong** | a result that does not meet it |
| refuses | an error that a program can catch, before a wrong result |
| **aborts** | the process, or everything on the device, is at an end |
| – | not in the interface: an option or an operation that it does not have |
| not run | the run's time limit |

The checks are of this project's choosing: they are the kinds of input that its own tests hold it to, so its own column
says less than the others.

Each implementation is called with its own defaults through its own interface. What is called wrong here may be what
its documentation says: PyTorch defines the mean over no rows as NaN and gives
log-probabilities in the logits' dtype, Cut Cross-Entropy leaves out gradients below a
threshold on purpose, Liger writes the gradient over the logits to save memory. Whoever relies on such a kind of input
has to know it all the same.
"""


def escape(text):
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def section(path):
    data = json.loads(pathlib.Path(path).read_text())
    facts, labels, checks = data["environment"], data["labels"], data["checks"]
    names = list(labels)
    versions = facts["versions"]
    lines = [f"## {facts['device']}", "",
             ", ".join(f"{labels[name]} {versions[name]}" for name in names) +
             (f", driver {facts['driver']}" if "driver" in facts else "") + f"; {facts['date'][:10]}.", "",
             f"    {facts['command']}", ""]
    lines += ["| check | " + " | ".join(labels[name] for name in names) + " |", "|---|" + "---|" * len(names)]
    for number, entry in enumerate(checks, 1):
        cells = [CELLS[entry["verdicts"][name]["verdict"]] for name in names]
        lines.append(f"| {number}. {escape(entry['check'])} | " + " | ".join(cells) + " |")
    counts = []
    for name in names:
        given = [entry["verdicts"][name]["verdict"] for entry in checks]
        taken = [one for one in given if one not in ("not taken", "not run")]
        counts.append(f"{taken.count('right')} of {len(taken)}")
    lines += ["| right, of those taken | " + " | ".join(counts) + " |", ""]
    seen = []
    for number, entry in enumerate(checks, 1):
        for name in names:
            result = entry["verdicts"][name]
            if result["verdict"] in ("wrong", "refuses", "aborts"):
                seen.append(f"- {number}, {labels[name]}: {escape(result.get('seen', ''))}")
    return "\n".join(lines + (["What was seen:", ""] + seen + [""] if seen else [])), checks


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sections, criteria = [], {}
    for path in sys.argv[1:]:
        text, checks = section(path)
        sections.append(text)
        criteria.update({entry["check"]: entry["criterion"] for entry in checks})
    print(HEAD)
    print("\n".join(sections))
    print("## The criteria\n")
    for title, criterion in criteria.items():
        print(f"- **{escape(title)}**: {escape(criterion)}")


if __name__ == "__main__":
    main()
