"""Causal language models of transformers, mixtures of experts and recurrent ones included."""

from __future__ import annotations

from typing import Any

import transformers as hf
from torch import nn

from tests.zoo.entry import Entry, Inputs, ids

TINY = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**TINY, "num_key_value_heads": 1}


def causal(name: str, config: type[Any], model: type[Any], why: str = "", **given: Any) -> Entry:
    def build() -> tuple[nn.Module, Inputs]:
        tokens = ids()
        return model(config(**given)), {"input_ids": tokens, "labels": tokens.clone()}

    return Entry(name, build, why=why)


DECODERS = (
    causal(
        "gpt2", hf.GPT2Config, hf.GPT2LMHeadModel,
        vocab_size=50, n_layer=3, n_embd=16, n_head=2, n_positions=16,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
    ),
    causal("gpt_neox", hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, **TINY),
    causal(
        "opt", hf.OPTConfig, hf.OPTForCausalLM,
        vocab_size=50, hidden_size=16, ffn_dim=32, num_hidden_layers=3, num_attention_heads=2,
        word_embed_proj_dim=16, max_position_embeddings=16, dropout=0, use_cache=False,
    ),
    causal("llama", hf.LlamaConfig, hf.LlamaForCausalLM, **GROUPED),
    causal("mistral", hf.MistralConfig, hf.MistralForCausalLM, **GROUPED, sliding_window=4),
    causal("qwen2", hf.Qwen2Config, hf.Qwen2ForCausalLM, **GROUPED),
    causal("qwen3", hf.Qwen3Config, hf.Qwen3ForCausalLM, **GROUPED, head_dim=8),
    causal("gemma", hf.GemmaConfig, hf.GemmaForCausalLM, **GROUPED, head_dim=8),
    causal("gemma2", hf.Gemma2Config, hf.Gemma2ForCausalLM, **GROUPED, head_dim=8),
    causal("phi", hf.PhiConfig, hf.PhiForCausalLM, **TINY),
    causal("falcon", hf.FalconConfig, hf.FalconForCausalLM, **TINY),
    causal(
        "bloom", hf.BloomConfig, hf.BloomForCausalLM,
        vocab_size=50, hidden_size=16, n_layer=3, n_head=2, hidden_dropout=0, attention_dropout=0,
        use_cache=False, why="alibi",
    ),
    causal(
        "mixtral", hf.MixtralConfig, hf.MixtralForCausalLM,
        **GROUPED, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
        why="experts, with a loss that sums over layers",
    ),
    causal(
        "qwen2_moe", hf.Qwen2MoeConfig, hf.Qwen2MoeForCausalLM,
        **GROUPED, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4,
        num_experts_per_tok=2, output_router_logits=True,
        why="shared and routed experts",
    ),
    causal(
        "olmoe", hf.OlmoeConfig, hf.OlmoeForCausalLM,
        **GROUPED, num_experts=4, num_experts_per_tok=2,
    ),
    causal(
        "mamba", hf.MambaConfig, hf.MambaForCausalLM,
        vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=3, conv_kernel=3,
        use_cache=False, why="a scan over time",
    ),
    causal(
        "rwkv", hf.RwkvConfig, hf.RwkvForCausalLM,
        vocab_size=50, hidden_size=16, num_hidden_layers=3, context_length=16, use_cache=False,
        why="a recurrence over time",
    ),
    causal(
        "recurrent_gemma", hf.RecurrentGemmaConfig, hf.RecurrentGemmaForCausalLM,
        **GROUPED, lru_width=16, attention_window_size=4,
        block_types=("recurrent", "recurrent", "attention"),
        why="a linear recurrence beside windowed attention",
    ),
)  # fmt: skip
