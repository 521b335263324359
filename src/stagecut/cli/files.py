"""What a name seems to be that a command cannot use, and what takes it."""

from __future__ import annotations

import json
from pathlib import Path

from stagecut.ir.clusterfile import SUFFIX

PROBLEM = "a partitioning problem"


def kind_of(name: str) -> tuple[str, str]:
    """What `name` seems to be, and the command that takes it; empty where it could be anything."""
    path = Path(name)
    if path.suffix == ".py":
        module = ".".join(path.with_suffix("").parts)
        return "Python code", f"stagecut plan {module}:FUNCTION -n 2: it returns the model"
    if path.is_dir():
        return _folder(path)
    if path.suffix == SUFFIX:
        return "a cluster", f"stagecut plan MODEL -n 2 --cluster {name}"
    if path.suffix == ".safetensors":
        return "weights", "stagecut.load_stage(FOLDER, stage), beside the stage's .py"
    if path.is_file():
        return _document(path)
    if ":" in name:
        return "the name of a model", f"stagecut plan {name} -n 2"
    return "", ""


def _folder(path: Path) -> tuple[str, str]:
    if (path / "plan.json").is_file():
        return "an export folder", f"stagecut run {path} -n 2"
    if (path / "config.json").is_file():
        return "a folder of transformers", f"stagecut plan hf:{path} -n 2"
    return "", ""


def _document(path: Path) -> tuple[str, str]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "", ""
    known = document if isinstance(document, dict) else {}
    if "plan" in known:
        return "a saved plan", f'stagecut.Plan.load("{path}") in Python, which prints'
    if "timings" in known:
        return "a profile of times", f"stagecut plan MODEL -n 2 --cost {path}"
    if "nodes" in known:
        return PROBLEM, f"stagecut solve {path} -n 2"
    return "", ""
