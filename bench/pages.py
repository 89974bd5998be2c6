#!/usr/bin/env python3
"""Writes the measured figures into the pages of the operations, between the lines `<!-- measured: begin -->` and
`<!-- measured: end -->`; and all of them into docs/performance.md, where it has these lines.

    python3 bench/pages.py              # of the committed results, or of the files named
    python3 bench/pages.py --check      # only says whether the pages are current
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rows import OURS, Results, result_files  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
MODES = {"forward+backward": "loss and gradients", "forward": "loss alone"}


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows]


def number(value, digits=3):
    """With so many significant digits, without an exponent."""
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    decimals = digits
    for bound in (1, 10, 100):
        if value >= bound:
            decimals -= 1
    return f"{value:.{decimals}f}"


def sources(results, up):
    names = " and ".join(f"[{name}]({up}bench/results/{'peers/' if 'peers' in facts else ''}{name})"
                         for name, facts in results.sources)
    device = results.devices()[0]
    facts = results.sources[0][1]
    return [f"{device}, driver {facts.get('driver', 'unknown')}, {facts['date'][:10]}; medians, from {names}, "
            f"by [bench]({up}bench/README.md)."]


def figure(name, text, folder):
    return [f"![{text}]({folder}{name})"] if (DOCS / "figures" / name).exists() else []


def failure(row):
    return "not measured" if "time limit" in row["error"] else "fails"


def peers(results, shapes, **fields):
    """A table of all implementations on the shapes that peers were measured on; nothing where there are none."""
    rows = results.default(**fields) + results.select(errors=True, **fields)
    measured = [shape for shape in shapes
                if any((row["N"], row["D"], row["V"]) == shape and row["who"] != OURS for row in rows)]
    if not measured:
        return []
    head = ["milliseconds"] + [f"{d} x {v}" if d else f"V = {v}" for _, d, v in measured]
    body = []
    for who in results.whos(rows):
        mine = {(row["N"], row["D"], row["V"]): row for row in rows if row["who"] == who}
        cells = []
        for shape in measured:
            row = mine.get(shape)
            cells.append("–" if row is None else failure(row) if "error" in row else number(row["milliseconds"]))
        body.append([results.label(who)] + cells)
    what = "D x V" if measured[0][1] else "vocabularies"
    return ["", f"Beside other implementations, {MODES[fields['mode']]}, {measured[0][0]} rows, {what}; settings and "
            "memory are in the rows of the peers' file, what fails says why there:", ""] + table(head, body)


def row_operation(results, operation, mode, floor):
    rows = results.select(operation=operation, who=OURS, N=8192)
    shapes = [(row["N"], row["D"], row["V"]) for row in rows]
    body = [[str(row["V"]), number(row["milliseconds"]), number(row["floor_milliseconds"]), f"{row['ratio']:.2f}",
             f"{row['rate']:.2f}"] for row in sorted(rows, key=lambda row: row["V"])]
    return ([f"8192 rows, {rows[0]['dtype']}:", ""] + table(["V", "ms", f"{floor}, ms", "ratio", "TB/s"], body) +
            peers(results, shapes, operation=operation, mode=mode, N=8192))


def linear(results):
    operation = "chunked_linear_cross_entropy"
    rows = results.default(operation=operation, who=OURS)
    shapes = sorted({(row["D"], row["V"]) for row in rows})
    n = rows[0]["N"]
    body = []
    for d, v in shapes:
        both = {row["mode"]: row for row in rows if (row["D"], row["V"]) == (d, v)}
        full, alone = both.get("forward+backward"), both.get("forward")
        body.append([str(d), str(v), number(full["milliseconds"]), f"{full['ratio']:.2f}", number(full["rate"]),
                     number(alone["milliseconds"]), f"{alone['ratio']:.2f}", f"{full['workspace_bytes'] / 2**20:.0f}"])
    lines = [f"{n} tokens, {rows[0]['dtype']}, default plan, tuned; the ratio is to the bare products of the unchunked "
             "shape:", ""]
    lines += table(["D", "V", "loss and gradients, ms", "ratio", "TFLOP/s", "loss alone, ms", "ratio",
                    "workspace, MiB"], body)
    budgets = [row for row in results.select(operation=operation, who=OURS, mode="forward+backward")
               if row["budget"] != "default"]
    if budgets:
        names = sorted({row["budget"] for row in budgets}, key=lambda name: -float(name[0]) / float(name[2:]))
        body = []
        for d, v in sorted({(row["D"], row["V"]) for row in budgets}):
            cells = [row for name in names for row in budgets if (row["D"], row["V"], row["budget"]) == (d, v, name)]
            body.append([str(d), str(v)] + [f"{number(row['milliseconds'])} ms, {row['workspace_bytes'] / 2**20:.0f} "
                                            f"MiB, {row['chunks']} chunks" for row in cells])
        lines += ["", "With a workspace budget of a part of the full logits, plus 64 MiB, loss and gradients:", ""]
        lines += table(["D", "V"] + names, body)
    return lines + peers(results, [(n, d, v) for d, v in shapes], operation=operation, mode="forward+backward", N=n)


def pages(results):
    """path -> lines between the marks."""
    operations = {
        "chunked_linear_cross_entropy": (linear(results), ["linear_time.svg", "linear_memory.svg"]),
        "cross_entropy_with_grad": (row_operation(results, "cross_entropy_with_grad", "forward+backward",
                                                  "device copy"), ["bandwidth.svg"]),
        "selective_log_softmax": (row_operation(results, "selective_log_softmax", "forward", "half a device copy"),
                                  ["bandwidth.svg"]),
    }
    texts = {"linear_time.svg": "Time against vocabulary", "linear_memory.svg": "Time against memory",
             "bandwidth.svg": "Achieved bandwidth"}
    made, gathered = {}, []
    for name, (lines, figures) in operations.items():
        pictures = [figure(picture, texts[picture], "../figures/") for picture in figures]
        shown = [""] + [line for picture in pictures for line in picture] + [""]
        head = ["", "## Measured", ""] + sources(results, "../../") + [""]
        made[DOCS / "operations" / f"{name}.md"] = head + lines + shown
        gathered += ["", f"### {name}", ""] + lines
    pictures = [line for picture in texts for line in figure(picture, texts[picture], "figures/") + [""]]
    made[DOCS / "performance.md"] = [""] + sources(results, "../") + [""] + pictures + gathered[1:] + [""]
    return made


def main():
    given = [argument for argument in sys.argv[1:] if argument != "--check"]
    if any(argument.startswith("-") for argument in given):
        sys.exit(__doc__)
    stale = []
    for path, lines in pages(Results(result_files(given))).items():
        text = path.read_text() if path.exists() else ""
        if BEGIN not in text and path.name == "performance.md":
            continue
        before, mark, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not mark or not end:
            sys.exit(f"{path}: expected the lines {BEGIN} and {END}")
        new = before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after
        while "\n\n\n" in new:
            new = new.replace("\n\n\n", "\n\n")
        if new != text:
            stale.append(str(path))
            if "--check" not in sys.argv:
                path.write_text(new)
                print(path)
    if stale and "--check" in sys.argv:
        sys.exit("not current: " + ", ".join(stale))


if __name__ == "__main__":
    main()
