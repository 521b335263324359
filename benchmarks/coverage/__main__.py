"""Every model of the zoo, through Stagecut and through torch's own tracer, side by side.

python -m benchmarks.coverage              all models, one process each; writes results.json
python -m benchmarks.coverage gpt2 lstm    some of them
python -m benchmarks.coverage --table      the table of results.json, as Markdown
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
SECONDS = 600
"""After which a model's process is stopped."""


def main() -> None:
    match sys.argv[1:]:
        case ["--one", name]:
            print("\n" + json.dumps(one(name)))
        case ["--table"]:
            print(table(json.loads(RESULTS.read_text())))
        case names:
            run(names)


def run(names: list[str]) -> None:
    from tests.zoo.table import ZOO

    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or list(ZOO):
        rows[name] = in_a_process(name)
        print(name, json.dumps(rows[name]), flush=True)
        ordered = {name: rows[name] for name in ZOO if name in rows}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


def in_a_process(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.coverage", "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"stagecut": {"fault": f"stopped after {SECONDS} s"}}
    if done.returncode:
        return {"stagecut": {"fault": done.stderr.strip().splitlines()[-1][:200]}}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def one(name: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    from benchmarks.coverage import ours, torchs
    from tests.zoo.table import ZOO

    entry = ZOO[name]
    # Ours first: torch's tracer, after some models, leaves state behind in the process.
    found = ours.measure(entry)
    theirs = {str(n): torchs.measure(entry, n) for n in ours.STAGES}
    return {"stagecut": found, "torch": theirs, "why": entry.why}


def table(rows: dict[str, Any]) -> str:
    lines = [
        "| model | frontend | seconds | ops | opaque | 2 | 3 | 4 | torch.fx "
        "| torch 2 | torch 3 | torch 4 |",
        "|---|---|---:|---:|---:|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        ours, theirs = row["stagecut"], row.get("torch", {})
        cells = [name, ours.get("frontend", ours.get("fault", "")), ours.get("seconds", "")]
        cells += [ours.get("nodes", ""), ours.get("opaque", "")]
        cells += [short(ours.get(f"equal_{n}", "")) for n in (2, 3, 4)]
        cells += [by_fx(ours.get("fx"))]
        cells += [short(theirs.get(str(n), {}).get("outcome", "")) for n in (2, 3, 4)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def by_fx(outcome: str | None) -> str:
    if outcome is None:
        return ""
    return "traced" if outcome == "traced" else "no trace"


def short(outcome: str) -> str:
    return (
        outcome.split(":")[0] if outcome.startswith(("no trace", "differs", "fails")) else outcome
    )


if __name__ == "__main__":
    main()
