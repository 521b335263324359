"""Models at the sizes that were published, on the meta device, with one micro-batch each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers as hf
from torch import nn

from benchmarks.cuts.unet import UNet

Example = dict[str, Any]
Build = Callable[[], tuple[nn.Module, Example]]
ROWS, IMAGES = 2, 16
"""Rows of a micro-batch: of text and sound, of images."""


def ids(tokens: int, rows: int = ROWS) -> torch.Tensor:
    """Token ids that hold nothing; shape [rows, tokens]."""
    return torch.zeros(rows, tokens, dtype=torch.long)


def causal(config: Any, tokens: int) -> tuple[nn.Module, Example]:
    """A language model with its own loss."""
    text = ids(tokens)
    return hf.AutoModelForCausalLM.from_config(config), {"input_ids": text, "labels": text.clone()}


def gpt(layers: int, width: int, heads: int, tokens: int, vocabulary: int) -> Build:
    return lambda: causal(
        hf.GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, n_positions=tokens, vocab_size=vocabulary,
            use_cache=False,
        ),
        tokens,
    )  # fmt: skip


def llama_70b() -> tuple[nn.Module, Example]:
    config = hf.LlamaConfig(
        hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28_672, max_position_embeddings=4096, use_cache=False,
    )  # fmt: skip
    return causal(config, 4096)


def mixtral_8x7b() -> tuple[nn.Module, Example]:
    config = hf.MixtralConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14_336, num_local_experts=8, num_experts_per_tok=2, use_cache=False,
    )  # fmt: skip
    return causal(config, 4096)


def bert_large() -> tuple[nn.Module, Example]:
    config = hf.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    text = ids(512, 8)
    return hf.BertForMaskedLM(config), {"input_ids": text, "labels": text.clone()}


def t5_11b() -> tuple[nn.Module, Example]:
    config = hf.T5Config(
        d_model=1024,
        d_kv=128,
        d_ff=65_536,
        num_layers=24,
        num_heads=128,
        use_cache=False,
        decoder_start_token_id=0,
    )
    example = {"input_ids": ids(512), "labels": ids(512), "use_cache": False}
    return hf.T5ForConditionalGeneration(config), example


def whisper_large() -> tuple[nn.Module, Example]:
    config = hf.WhisperConfig(
        d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20,
        decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120, use_cache=False,
    )  # fmt: skip
    example = {
        "input_features": torch.zeros(ROWS, config.num_mel_bins, 3000), "labels": ids(448),
        "use_cache": False,
    }  # fmt: skip
    return hf.WhisperForConditionalGeneration(config), example


def clip_large() -> tuple[nn.Module, Example]:
    text = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "projection_dim": 768, "eos_token_id": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "projection_dim": 768, "image_size": 224, "patch_size": 14,
    }  # fmt: skip
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=768))
    return model, {"input_ids": ids(77, IMAGES), "pixel_values": images()}


def images(size: int = 224) -> torch.Tensor:
    """Shape [IMAGES, 3, size, size]."""
    return torch.zeros(IMAGES, 3, size, size)


def classifying(config: Any) -> tuple[nn.Module, Example]:
    """An image classifier with its own loss."""
    labels = torch.zeros(IMAGES, dtype=torch.long)
    model = hf.AutoModelForImageClassification.from_config(config)
    return model, {"pixel_values": images(), "labels": labels}


def vit_huge() -> tuple[nn.Module, Example]:
    return classifying(
        hf.ViTConfig(
            hidden_size=1280, num_hidden_layers=32, num_attention_heads=16, intermediate_size=5120,
            patch_size=14, num_labels=1000,
        )
    )  # fmt: skip


def resnet_152() -> tuple[nn.Module, Example]:
    return classifying(hf.ResNetConfig(depths=[3, 8, 36, 3], num_labels=1000))


def swin_large() -> tuple[nn.Module, Example]:
    return classifying(
        hf.SwinConfig(
            embed_dim=192, depths=[2, 2, 18, 2], num_heads=[6, 12, 24, 48], window_size=7,
            num_labels=1000, drop_path_rate=0.0,
        )
    )  # fmt: skip


def unet() -> tuple[nn.Module, Example]:
    return UNet(width=320), {"latent": torch.zeros(8, 4, 64, 64), "time": torch.zeros(8, 320)}


MODELS: Mapping[str, Build] = MappingProxyType(
    {
        "resnet-152": resnet_152,
        "vit-h": vit_huge,
        "swin-l": swin_large,
        "unet": unet,
        "clip-l": clip_large,
        "bert-large": bert_large,
        "gpt2-xl": gpt(48, 1600, 25, 1024, 50_257),
        "whisper-large": whisper_large,
        "t5-11b": t5_11b,
        "mixtral-8x7b": mixtral_8x7b,
        "llama-70b": llama_70b,
        "gpt3-175b": gpt(96, 12_288, 96, 2048, 50_257),
        "178b-256k": gpt(76, 13_824, 96, 2048, 256_000),
    }
)
"""The smaller first; all in bfloat16."""


def load(name: str) -> tuple[nn.Module, Example]:
    """The model in bfloat16 and its example, both on the meta device."""
    with torch.device("meta"):
        model, example = MODELS[name]()
    model = model.to(torch.bfloat16).train()
    cast = {
        key: item.to(torch.bfloat16) if isinstance(item, torch.Tensor) and item.is_floating_point()
        else item
        for key, item in example.items()
    }  # fmt: skip
    return model, cast
