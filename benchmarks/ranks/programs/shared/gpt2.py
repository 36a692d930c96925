# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 of Hugging Face with random weights, sharded by FSDP2 block by block."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

from shared.job import Job

VOCABULARY = 8192


def gpt2(job: Job, layers: int = 12, width: int = 768) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    layers, width, heads = job.pick((layers, width, width // 64), (2, 32, 2))
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=1024,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).to(job.device)
    for block in model.transformer.h:
        fully_shard(block)
    return fully_shard(model)


def random_ids(job: Job, batch: int, length: int) -> torch.Tensor:
    torch.manual_seed(1 + job.rank)
    batch, length = job.pick((batch, length), (max(1, batch // 8), 16))
    return torch.randint(VOCABULARY, (batch, length), device=job.device)
