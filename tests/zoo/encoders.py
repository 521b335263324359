"""Encoders, and encoders with decoders, of text."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from tests.zoo.entry import ROWS, Entry, Inputs, ids, mean_square

TINY = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    "pad_token_id": 0,
}  # fmt: skip


def masked(name: str, config: type[Any], model: type[Any], why: str = "", **given: Any) -> Entry:
    def build() -> tuple[nn.Module, Inputs]:
        tokens = ids()
        mask = torch.ones_like(tokens)
        mask[:, -2:] = torch.randint(0, 2, (ROWS, 2))
        inputs = {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
        return model(config(**given)), inputs

    return Entry(name, build, why=why)


def translating(
    name: str, config: type[Any], model: type[Any], why: str = "", **given: Any
) -> Entry:
    def build() -> tuple[nn.Module, Inputs]:
        inputs = {"input_ids": ids(8), "labels": ids(6), "use_cache": False}
        return model(config(**given)), inputs

    return Entry(name, build, why=why)


def clip() -> tuple[nn.Module, Inputs]:
    sizes = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "projection_dim": 8,
    }  # fmt: skip
    config = hf.CLIPConfig(
        text_config={**sizes, "vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 2},
        vision_config={**sizes, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    return hf.CLIPModel(config), {
        "input_ids": ids(), "pixel_values": torch.randn(ROWS, 3, 8, 8),
    }  # fmt: skip


BART = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_position_embeddings": 16, "dropout": 0, "use_cache": False,
}  # fmt: skip

ENCODERS = (
    masked("bert", hf.BertConfig, hf.BertForMaskedLM, **TINY),
    masked("roberta", hf.RobertaConfig, hf.RobertaForMaskedLM, **TINY),
    masked(
        "distilbert", hf.DistilBertConfig, hf.DistilBertForMaskedLM,
        vocab_size=50, dim=16, hidden_dim=32, n_layers=3, n_heads=2, dropout=0,
        attention_dropout=0,
    ),
    masked("electra", hf.ElectraConfig, hf.ElectraForMaskedLM, **TINY, embedding_size=8),
    masked("albert", hf.AlbertConfig, hf.AlbertForMaskedLM, **TINY, embedding_size=8,
           why="one layer's weights used by all"),
    masked(
        "deberta", hf.DebertaV2Config, hf.DebertaV2ForMaskedLM,
        **TINY, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4,
        norm_rel_ebd="layer_norm", share_att_key=True, type_vocab_size=0,
        why="relative positions by gather",
    ),
    translating(
        "t5", hf.T5Config, hf.T5ForConditionalGeneration,
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0,
        decoder_start_token_id=0, why="one table of relative positions shared by all layers",
    ),
    translating("bart", hf.BartConfig, hf.BartForConditionalGeneration, **BART),
    translating("pegasus", hf.PegasusConfig, hf.PegasusForConditionalGeneration, **BART),
    Entry("clip", clip, mean_square("logits_per_image", "text_embeds"),
          why="two towers"),
)  # fmt: skip
