"""Models named `hf:...`: transformers architectures at well-known sizes, with an example input."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stagecut.cli.example import Example
from stagecut.ir.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

LONGEST = 1024
"""Tokens a row where nobody says otherwise and the model takes as many."""

Size = tuple[str, Mapping[str, int]]
_LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32}

SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "gpt2-medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
        "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
        "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
        "bert-base": ("bert", {}),
        "bert-large": (
            "bert",
            {
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
        ),
        "vit-base": ("vit", {}),
        "vit-large": (
            "vit",
            {
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
        ),
        "resnet-50": ("resnet", {}),
        "llama-2-7b": ("llama", {**_LLAMA, "max_position_embeddings": 4096}),
        "llama-2-13b": (
            "llama",
            {
                "hidden_size": 5120,
                "num_hidden_layers": 40,
                "num_attention_heads": 40,
                "num_key_value_heads": 40,
                "intermediate_size": 13824,
                "max_position_embeddings": 4096,
            },
        ),
    }
)
"""Model type and what differs from its default configuration, by the name people use."""


def load_named(
    name: str, example: Example, *, weights: bool
) -> tuple[nn.Module, tuple[()], dict[str, Any]]:
    """The model called `name` with an example for it, on the meta device or in memory.

    `name` is in SIZES, a model type of transformers, or a local folder with a config.json. With
    `weights`, a folder's own weights are loaded where it has any; all others are drawn at random.

    Raises:
        ArgumentError: transformers is missing, knows no such name, or the model takes neither
            tokens nor images.
    """
    transformers = _transformers(name)
    config = _config(transformers, name)
    kind = _auto_class(transformers, config)
    inputs = _inputs(name, config, example, device="cpu" if weights else "meta")
    if example.training and kind is not transformers.AutoModel:
        inputs["labels"] = _labels(inputs)
    return _build(kind, name, config, weights=weights), (), inputs


def _transformers(name: str) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"hf:{name} needs the package transformers: pip install 'stagecut[hf]'"
        ) from error
    transformers.logging.set_verbosity_error()
    return transformers


def _config(transformers: Any, name: str) -> Any:
    if (Path(name) / "config.json").is_file():
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    model_type, changes = SIZES.get(name, (name, {}))
    try:
        return transformers.AutoConfig.for_model(model_type, **changes)
    except ValueError as error:
        raise ArgumentError(
            f"hf:{name}: no such name, and no folder {name!r} with a config.json. Known sizes: "
            f"{', '.join(SIZES)}; any transformers model type (gpt2, llama, mistral, ...) has its "
            "default size. Nothing is downloaded: give the folder of a downloaded model"
        ) from error


def _build(kind: Any, name: str, config: Any, *, weights: bool) -> nn.Module:
    import torch

    model: nn.Module
    if not weights:
        with torch.device("meta"):
            model = kind.from_config(config)
    elif any(Path(name).glob("*.safetensors")):
        model = kind.from_pretrained(name, config=config, local_files_only=True)
    else:
        model = kind.from_config(config)
    return model.train()


def _auto_class(transformers: Any, config: Any) -> Any:
    """The class with a head to train; a masked language model is no causal one."""
    auto = transformers.models.auto.modeling_auto
    heads = (
        (auto.MODEL_FOR_MASKED_LM_MAPPING, transformers.AutoModelForMaskedLM),
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM),
        (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, transformers.AutoModelForImageClassification),
    )
    for mapping, kind in heads:
        if type(config) in mapping:
            return kind
    return transformers.AutoModel


def _inputs(name: str, config: Any, example: Example, device: str) -> dict[str, Any]:
    import torch

    vocabulary, rows = getattr(config, "vocab_size", None), example.rows
    if vocabulary is not None:
        shape = (rows, _length(name, config, example.length))
        return {"input_ids": torch.randint(vocabulary, shape, device=device)}
    if hasattr(config, "num_channels"):
        side = getattr(config, "image_size", 224)
        return {"pixel_values": torch.randn(rows, config.num_channels, side, side, device=device)}
    raise ArgumentError(
        f"hf:{name} takes neither tokens nor images alone; write a function that returns "
        "(model, args, kwargs) and name it as module:function"
    )


def _length(name: str, config: Any, wanted: int | None) -> int:
    longest: int = getattr(config, "max_position_embeddings", LONGEST)
    if wanted is not None and wanted > longest:
        raise ArgumentError(f"--length is {wanted}, and {name} takes at most {longest} tokens")
    return wanted or min(longest, LONGEST)


def _labels(inputs: dict[str, Any]) -> Any:
    """The tokens themselves, which a language model shifts by one; class 0 or 1 of each image."""
    import torch

    if "input_ids" in inputs:
        return inputs["input_ids"].clone()
    pixels = inputs["pixel_values"]
    return torch.randint(2, (len(pixels),), device=pixels.device)
