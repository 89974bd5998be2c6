#!/usr/bin/env python3
"""Draws the figures of docs/figures from results: ours and, where there are some, the peers'. Needs matplotlib.

    python3 bench/plots.py                      # of the committed results
    python3 bench/plots.py MINE.json PEERS.json --out FOLDER

Where a peer is ahead, the figures show it. Files *.environment.json are found beside the results.
"""

import argparse
import pathlib
import sys
import textwrap

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rows import LABELS, OURS, Results, result_files  # noqa: E402

COLORS = dict(zip(LABELS, ("#0b62c4", "#c0392b", "#e67e22", "#b8860b", "#2e8b57", "#7fb069", "#8e44ad", "#b39ddb",
                           "#607d8b")))
MARKERS = dict(zip(LABELS, "osD^vv<>P"))
FLOOR = "#444444"
FORMAT = "svg"

plt.rcParams.update({"svg.hashsalt": "greyhound", "svg.fonttype": "none", "font.size": 9, "axes.grid": True,
                     "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
                     "font.family": "sans-serif", "figure.facecolor": "white"})


def thousands(value, _):
    return f"{value / 1000:.0f}k"


def style(who):
    return {"color": COLORS.get(who, "black"), "marker": MARKERS.get(who, "x"), "markersize": 4,
            "linewidth": 2.2 if who == OURS else 1.3, "zorder": 3 if who == OURS else 2}


def draw(ax, rows, x, y, results):
    """A line for each implementation over the rows."""
    for who in results.whos(rows):
        mine = sorted((row for row in rows if row["who"] == who), key=lambda row: row[x])
        ax.plot([row[x] for row in mine], [row[y] for row in mine], label=results.label(who), **style(who))


def draw_floor(ax, rows, label, y=lambda row: row["floor_milliseconds"]):
    """The floor of our own runs, or of the peers' where there is none of ours."""
    ours = [row for row in rows if row["who"] == OURS] or rows
    by_vocab = {row["V"]: y(row) for row in ours}
    ax.plot(sorted(by_vocab), [by_vocab[vocab] for vocab in sorted(by_vocab)], label=label, color=FLOOR,
            linestyle="--", linewidth=1)


def failed(results, rows_of_figure, **fields):
    """A line about what has no figure."""
    shapes = {(row["D"], row["V"]) for row in rows_of_figure}
    missing = {}
    for row in results.select(errors=True, **fields):
        if (row["D"], row["V"]) in shapes:
            where = f"{row['D']} x {row['V']}" if row["D"] else str(row["V"])
            missing.setdefault((LABELS.get(row["who"], row["who"]), row["error"][:90]), []).append(where)
    notes = [f"{who} at {', '.join(where)}: {error}" for (who, error), where in missing.items()]
    return ["Without a figure: " + "; ".join(notes)] if notes else []


def finish(figure, axes, title, results, path, notes=()):
    handles = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    width, height = figure.get_size_inches()
    lines = []
    for line in list(dict.fromkeys(notes)) + results.caption():
        lines += textwrap.wrap(line, int(width * 17), subsequent_indent="    ")
    columns = min(len(handles), max(2, int(width / 2.6)))
    top = 0.55 + 0.2 * -(-len(handles) // columns)  # inches that title, legend and the panels' titles take
    bottom = 0.65 + 0.125 * len(lines)
    figure.suptitle(title, x=0.01, y=1 - 0.06 / height, ha="left", va="top", fontsize=11, fontweight="bold")
    figure.legend(handles.values(), handles.keys(), loc="upper left", ncols=columns, frameon=False, fontsize=8,
                  bbox_to_anchor=(0.005, 1 - 0.24 / height))
    figure.text(0.01, 0.06 / height, "\n".join(lines), fontsize=6.5, color="#555555", va="bottom",
                family="monospace", linespacing=1.35)
    figure.subplots_adjust(left=0.6 / width, right=1 - 0.15 / width, bottom=bottom / height, top=1 - top / height,
                           wspace=0.25)
    path = path.with_suffix("." + FORMAT)
    figure.savefig(path, dpi=120, metadata={"Date": None} if FORMAT == "svg" else None)
    plt.close(figure)
    print(path)


def linear_time(results, folder):
    rows = results.default(operation="chunked_linear_cross_entropy", mode="forward+backward")
    hidden = sorted({row["D"] for row in rows})
    hidden = [d for d in hidden if len({row["V"] for row in rows if row["D"] == d}) > 1]
    if not hidden:
        return
    figure, axes = plt.subplots(1, len(hidden), figsize=(2.9 * len(hidden) + 0.4, 4.8), squeeze=False)
    for ax, d in zip(axes[0], hidden):
        here = [row for row in rows if row["D"] == d]
        draw_floor(ax, here, "the three bare products, unchunked")
        draw(ax, here, "V", "milliseconds", results)
        ax.set(title=f"D = {d}", xlabel="vocabulary V", yscale="log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""))
        ax.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes[0][0].set_ylabel("milliseconds")
    tokens = "/".join(str(n) for n in sorted({row["N"] for row in rows}))
    finish(figure, axes[0], f"Linear cross-entropy, loss and both gradients, {tokens} tokens, {rows[0]['dtype']}",
           results, folder / "linear_time.svg",
           failed(results, [row for row in rows if row["D"] in hidden], operation="chunked_linear_cross_entropy",
                  mode="forward+backward"))


def linear_memory(results, folder, vocab=128256):
    rows = [row for row in results.select(operation="chunked_linear_cross_entropy", mode="forward+backward", V=vocab)
            if row["workspace_bytes"] is not None]
    hidden = sorted({row["D"] for row in rows})
    several = [d for d in hidden if len({row["who"] for row in rows if row["D"] == d}) > 1]
    hidden = several or hidden
    if not hidden:
        return
    figure, axes = plt.subplots(1, len(hidden), figsize=(2.9 * len(hidden) + 0.4, 4.8), squeeze=False)
    for ax, d in zip(axes[0], hidden):
        here = [row for row in rows if row["D"] == d]
        ax.axhline(min(row["floor_milliseconds"] for row in here if row["who"] == OURS or not several),
                   color=FLOOR, linestyle="--", linewidth=1, label="the three bare products, unchunked")
        for who in results.whos(here):
            mine = sorted((row for row in here if row["who"] == who), key=lambda row: row["workspace_bytes"])
            ax.plot([max(row["workspace_bytes"], 2**20) / 2**20 for row in mine],
                    [row["milliseconds"] for row in mine], label=results.label(who), **style(who))
        n = here[0]["N"]
        logits = n * vocab * 2 / 2**20
        ax.axvline(logits, color="#999999", linestyle=":", linewidth=1, label="the logits, 16 bit")
        ax.set(title=f"D = {d}", xlabel="MiB beyond inputs, weight, gradients", xscale="log")
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=min(100, ax.get_xlim()[0]))
        ax.set_ylim(top=1.1 * ax.get_ylim()[1])
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    axes[0][0].set_ylabel("milliseconds")
    notes = ["Greyhound's points: the default plan, and workspace budgets of 1/2, 1/4 and 1/8 of the logits plus 64 "
             "MiB. The peers' memory is that of a call after others: what they allocate once is not counted. "
             "Less than 1 MiB is drawn at 1 MiB."]
    finish(figure, axes[0], f"Time against memory, loss and both gradients, V = {vocab}, {rows[0]['dtype']}", results,
           folder / "linear_memory.svg", notes)


def bandwidth(results, folder):
    panels = [("cross_entropy_with_grad", "Loss and gradient of logits", 2), ("selective_log_softmax",
                                                                             "Chosen log-probabilities", 1)]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8))
    notes = ["Bytes that the operation has to move (one read and one write of the logits; one read) over the time "
             "that it takes. An implementation that makes copies moves more and shows less."]
    n = 8192
    for ax, (operation, title, passes) in zip(axes, panels):
        rows = results.select(operation=operation, N=n)
        if not rows:
            plt.close(figure)
            return
        size = {"fp32": 4}.get(rows[0]["dtype"], 2)
        draw_floor(ax, rows, "device copy of the logits",
                   lambda row: passes * 1e-9 * n * row["V"] * size / row["floor_milliseconds"])
        draw(ax, rows, "V", "rate", results)
        ax.set(title=f"{title}, {n} rows", xlabel="vocabulary V")
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_formatter(FuncFormatter(thousands))
        notes += failed(results, rows, operation=operation, N=n)
    axes[0].set_ylabel("TB/s")
    finish(figure, axes, f"Achieved bandwidth, {rows[0]['dtype']}", results, folder / "bandwidth.svg", notes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", help="NAME.json of greyhound-bench or bench/peers/run.py")
    parser.add_argument("--out", default="docs/figures", help="folder (default: docs/figures)")
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    options = parser.parse_args()
    global FORMAT
    FORMAT = options.format
    results = Results(result_files(options.results))
    if len(results.devices()) != 1:
        sys.exit(f"results of one device, please: these are of {', '.join(results.devices())}")
    folder = pathlib.Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    linear_time(results, folder)
    linear_memory(results, folder)
    bandwidth(results, folder)


if __name__ == "__main__":
    main()
