"""Reads rows of results and their environments: ours (greyhound-bench) and the peers' (bench/peers/run.py)."""

import json
import pathlib

OURS = "greyhound"
OPERATIONS = ("chunked_linear_cross_entropy", "cross_entropy_with_grad", "selective_log_softmax")
BENCH = pathlib.Path(__file__).resolve().parent
LABELS = {"greyhound": "Greyhound (this project)", "torch_eager": "PyTorch", "torch_compile": "torch.compile",
          "liger": "Liger", "quack": "Quack", "quack_tuned": "Quack, tuned", "cut_cross_entropy": "Cut Cross-Entropy",
          "cut_cross_entropy_exact": "Cut Cross-Entropy, exact", "greyhound_python": "Python Greyhound"}


def result_files(given):
    """The files named, or the committed ones: ours, and the peers' where there are some."""
    if given:
        return [path for path in given if not path.endswith(".environment.json")]
    peers = [path for path in sorted(BENCH.glob("results/peers/h200*.json")) if ".environment" not in path.name]
    return [BENCH / "results" / "h200_limits.json", BENCH / "results" / "h200_sweep.json"] + peers


class Results:
    """Rows of several files; of the same figure in two files of one implementation the later file's counts."""

    def __init__(self, paths):
        rows = {}
        self.sources = []
        self.versions = {}
        for path in map(pathlib.Path, paths):
            facts = json.loads(path.with_name(path.stem + ".environment.json").read_text())
            self.sources.append((path.name, facts))
            if "greyhound" in facts:
                self.versions[OURS] = facts["greyhound"]
            for row in json.loads(path.read_text()):
                if row.get("operation") not in OPERATIONS:
                    continue
                row["who"] = row.get("peer", OURS)
                if "version" in row:
                    self.versions[row["who"]] = row["version"]
                rows[self.key(row)] = row
        self.rows = [row for row in rows.values() if "error" not in row]
        self.errors = [row for row in rows.values() if "error" in row]

    @staticmethod
    def key(row):
        return tuple(row.get(name, "") for name in ("who", "operation", "mode", "N", "D", "V", "dtype", "budget"))

    def select(self, errors=False, **fields):
        return [row for row in (self.errors if errors else self.rows)
                if all(row.get(name) == value for name, value in fields.items())]

    def default(self, **fields):
        """Without the rows that were measured with another workspace budget than the default."""
        return [row for row in self.select(**fields) if row.get("budget", "default") == "default"]

    def label(self, who):
        return f"{LABELS.get(who, who)} {self.versions.get(who, '')}".strip()

    def whos(self, rows):
        """In the order of the table above, ours first."""
        present = {row["who"] for row in rows}
        return [who for who in LABELS if who in present] + sorted(present - set(LABELS))

    def devices(self):
        return sorted({facts["device"] for _, facts in self.sources})

    def caption(self):
        """Lines that say what was measured on what, with which command."""
        lines = []
        for name, facts in self.sources:
            about = [facts["device"], "driver " + facts.get("driver", "unknown")]
            about += [facts["products"]] if "products" in facts else []
            about += [f"{package} {facts[package]}" for package in ("torch", "triton") if package in facts]
            lines.append(f"{name} ({', '.join(about)}, {facts['date'][:10]}): {facts['command']}")
        return lines
