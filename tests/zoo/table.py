"""The zoo: every model, and the ten quickest."""

from __future__ import annotations

from tests.zoo.decoders import DECODERS
from tests.zoo.encoders import ENCODERS
from tests.zoo.entry import Entry
from tests.zoo.plain import PLAIN
from tests.zoo.vision import VISION

ZOO: dict[str, Entry] = {e.name: e for e in (*DECODERS, *ENCODERS, *VISION, *PLAIN)}
QUICK = (
    "gpt2", "vit", "resnet", "lstm", "unet", "dlrm", "graph_net", "autoencoder", "spectral",
    "siamese",
)  # fmt: skip
STAGES = (2, 3, 4)
