"""Plans GPT-2, exports it, trains a small GPT on two processes, cuts a pretrained encoder in 3."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.rule import Rule


def main() -> int:
    """Runs the four parts; status 0 if every check held."""
    console = Console(highlight=False)
    started = time.perf_counter()
    console.print("Loading PyTorch and Stagecut ...", style="dim")
    from examples.demo import planning, sentences, training

    with tempfile.TemporaryDirectory(prefix="stagecut-demo-") as name:
        folder = Path(name)
        console.print(Rule("1. GPT-2 planned for 4 A100s, weights on the meta device"))
        plan = planning.plan_gpt2(console)
        console.print(Rule("2. The stages as ordinary PyTorch"))
        planning.export_gpt2(plan, folder / "stages", console)
        console.print(Rule("3. A small GPT trained on two processes, beside the unsplit model"))
        trained = training.compare(folder, console)
        console.print(Rule("4. A pretrained sentence encoder cut in 3"))
        encoded = sentences.compare(console)
    seconds = time.perf_counter() - started
    console.print(Rule())
    if trained and encoded:
        console.print(f"[bold green]All checks held[/], in {seconds:.0f} s.")
        return 0
    console.print(f"[bold red]A check failed[/], after {seconds:.0f} s.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
