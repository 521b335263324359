"""Tiny configs of the transformers models that the project names, random weights, no dropout."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.support.equality import Case

VOCABULARY, ROWS, LENGTH = 64, 8, 12


def _text(model: Any, **more: torch.Tensor) -> Case:
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    return Case(model, (), {"input_ids": ids, "labels": ids.clone(), **more})


def _logits(output: Any) -> torch.Tensor:
    loss: torch.Tensor = output.logits.square().mean()
    return loss


def gpt2() -> Case:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_layer=4, n_embd=16, n_head=2, n_positions=32, bos_token_id=1,
        eos_token_id=1, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    return _text(hf.GPT2LMHeadModel(config))


def llama() -> Case:
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    return _text(hf.LlamaForCausalLM(config))


def bert() -> Case:
    config = hf.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    mask = (torch.rand(ROWS, LENGTH) > 0.1).long()
    return _text(hf.BertForMaskedLM(config), attention_mask=mask)


def vit() -> Case:
    config = hf.ViTConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        image_size=16, patch_size=4, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        num_labels=5,
    )  # fmt: skip
    pixels = torch.randn(ROWS, 3, 16, 16)
    return Case(hf.ViTForImageClassification(config), (), {"pixel_values": pixels}, _logits)


def resnet() -> Case:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=5
    )
    pixels = torch.randn(ROWS, 3, 16, 16)
    return Case(hf.ResNetForImageClassification(config), (), {"pixel_values": pixels}, _logits)
