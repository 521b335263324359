"""Models of images and sound."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from tests.zoo.entry import ROWS, Entry, Inputs, ids, mean_square


def classifying(
    name: str, config: type[Any], model: type[Any], why: str = "", size: int = 16, **given: Any
) -> Entry:
    def build() -> tuple[nn.Module, Inputs]:
        labels = torch.randint(0, 5, (ROWS,))
        inputs = {"pixel_values": torch.randn(ROWS, 3, size, size), "labels": labels}
        return model(config(**given, num_labels=5)), inputs

    return Entry(name, build, why=why)


def segformer() -> tuple[nn.Module, Inputs]:
    config = hf.SegformerConfig(
        num_encoder_blocks=2, depths=[2, 2], sr_ratios=[2, 1], hidden_sizes=[8, 16],
        patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, classifier_dropout_prob=0,
        drop_path_rate=0, decoder_hidden_size=16, num_labels=5,
    )  # fmt: skip
    labels = torch.randint(0, 5, (ROWS, 16, 16))
    inputs = {"pixel_values": torch.randn(ROWS, 3, 16, 16), "labels": labels}
    return hf.SegformerForSemanticSegmentation(config), inputs


def detr() -> tuple[nn.Module, Inputs]:
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        out_features=["stage2"],
    )  # fmt: skip
    config = hf.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=backbone, num_queries=4, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, encoder_attention_heads=2,
        decoder_attention_heads=2, dropout=0, num_labels=5,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(ROWS, 3, 16, 16)}
    return hf.DetrForObjectDetection(config), inputs


def whisper() -> tuple[nn.Module, Inputs]:
    config = hf.WhisperConfig(
        vocab_size=50, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8,
        max_source_positions=8, max_target_positions=8, dropout=0, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(ROWS, 8, 16), "labels": ids(6), "use_cache": False}
    return hf.WhisperForConditionalGeneration(config), inputs


def wav2vec2() -> tuple[nn.Module, Inputs]:
    config = hf.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, hidden_dropout=0, attention_dropout=0, activation_dropout=0,
        feat_proj_dropout=0, final_dropout=0, layerdrop=0, conv_dim=(8, 8), conv_stride=(4, 2),
        conv_kernel=(8, 4), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
    )  # fmt: skip
    return hf.Wav2Vec2ForSequenceClassification(config), {
        "input_values": torch.randn(ROWS, 160), "labels": torch.randint(0, 2, (ROWS,)),
    }  # fmt: skip


VISION = (
    classifying(
        "vit", hf.ViTConfig, hf.ViTForImageClassification,
        hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        image_size=16, patch_size=4, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    ),
    classifying(
        "swin", hf.SwinConfig, hf.SwinForImageClassification,
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, drop_path_rate=0,
        why="shifted windows",
    ),
    classifying(
        "convnext", hf.ConvNextConfig, hf.ConvNextForImageClassification,
        depths=[1, 2], hidden_sizes=[8, 16], num_stages=2, patch_size=2, drop_path_rate=0,
    ),
    classifying(
        "resnet", hf.ResNetConfig, hf.ResNetForImageClassification,
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic",
        why="batch norm",
    ),
    classifying(
        "regnet", hf.RegNetConfig, hf.RegNetForImageClassification,
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], groups_width=8,
        why="batch norm, squeeze and excitation",
    ),
    Entry("segformer", segformer),
    Entry(
        "detr", detr, mean_square("logits", "pred_boxes"),
        why="its encoder layers branch on data: one op each",
    ),
    Entry("whisper", whisper, why="sound in, text out"),
    Entry("wav2vec2", wav2vec2, why="weight norm by parametrization"),
)  # fmt: skip
