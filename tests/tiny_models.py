# SPDX-License-Identifier: Apache-2.0
"""One tiny model of random weights for each architecture, and what its attention is tested with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

VOCABULARY = 40

_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
}
_ALTERNATING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Tiny:
    model: str
    """The class in transformers; its config's class follows from it unless `config` names it."""
    options: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    kind: str = "decoder"
    """decoder, encoder, encoder-decoder or vision."""
    reason: str = ""
    """Of the calls of its training step that are handed back; empty where none is."""
    static: bool = True
    """Whether it generates with a static cache."""


MODELS: tuple[Tiny, ...] = (
    Tiny("LlamaForCausalLM"),
    Tiny("MistralForCausalLM", {"sliding_window": 5}),
    Tiny("Qwen2ForCausalLM"),
    Tiny("Qwen3ForCausalLM"),
    Tiny("MixtralForCausalLM", _EXPERTS),
    Tiny("Gemma2ForCausalLM", {**_ALTERNATING, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}),
    Tiny("Gemma3ForCausalLM", {**_ALTERNATING, "query_pre_attn_scalar": 8}, "Gemma3TextConfig"),
    Tiny("GptOssForCausalLM", {**_ALTERNATING, **_EXPERTS}),
    Tiny("Phi3ForCausalLM", {"sliding_window": 5, "partial_rotary_factor": 1.0}),
    Tiny("Olmo2ForCausalLM"),
    Tiny("Cohere2ForCausalLM", _ALTERNATING),
    Tiny("Starcoder2ForCausalLM", {"sliding_window": 4, "residual_dropout": 0.0, "embedding_dropout": 0.0}),
    Tiny("GPT2LMHeadModel", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "attn_pdrop": 0.0,
                             "resid_pdrop": 0.0, "embd_pdrop": 0.0}, "GPT2Config"),
    Tiny("GPTNeoXForCausalLM", {"hidden_dropout": 0.0}),
    Tiny("DeepseekV3ForCausalLM", {
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 16, "head_dim": 8,
    }),
    Tiny("Llama4ForCausalLM", {
        "attention_chunk_size": 4, "intermediate_size_mlp": 48, "num_local_experts": 2,
        "num_experts_per_tok": 1, "layer_types": ["chunked_attention", "full_attention"], "moe_layers": [],
    }, "Llama4TextConfig", reason="a mask that is neither"),
    Tiny("BertForMaskedLM", {
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }, kind="encoder"),
    Tiny("ModernBertForMaskedLM", {"local_attention": 6, "global_attn_every_n_layers": 2}, kind="encoder"),
    Tiny("BartForConditionalGeneration", {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0,
        "decoder_start_token_id": 1, "forced_eos_token_id": None,
    }, "BartConfig", kind="encoder-decoder"),
    Tiny("T5ForConditionalGeneration", {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }, "T5Config", kind="encoder-decoder", reason="position_bias"),
    Tiny("ViTForImageClassification", {
        "image_size": 16, "patch_size": 4, "num_channels": 3, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }, kind="vision"),
)  # fmt: skip


def build(transformers: Any, tiny: Tiny) -> torch.nn.Module:
    """The model in evaluation mode; its weights are large enough that attention is not uniform."""
    name = tiny.config or tiny.model.split("For")[0] + "Config"
    config = getattr(transformers, name)(**{**_DECODER, **tiny.options})
    torch.manual_seed(7)
    model: torch.nn.Module = getattr(transformers, tiny.model)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.3)
            elif "sinks" in parameter_name:
                parameter.normal_()
    return model
