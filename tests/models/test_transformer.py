# SPDX-License-Identifier: Apache-2.0
"""The model that the exercise teaches with: it trains, and its three heavy layers are one function."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
import warm_torch

from profiling_lab.exercises import find
from profiling_lab.exercises.workspace import copy_starter
from profiling_lab.models import HeavyBlock, PositionalEncoding, TransformerWithHeavyLayer, attention_layer

TINY = {"vocab_size": 50, "d_model": 32, "nhead": 4, "num_layers": 2}
TINY_ARGUMENTS = [
    "--batch-size",
    "4",
    "--seq-len",
    "16",
    "--vocab-size",
    "50",
    "--d-model",
    "32",
    "--nhead",
    "4",
]


def gradients(heavy: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = TransformerWithHeavyLayer(**TINY, heavy=heavy).double()
    tokens = torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(1))
    output = model(tokens[:, :-1])
    torch.nn.functional.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return {"output": output.detach()} | {name: p.grad for name, p in model.named_parameters()}


def test_full_size_has_the_asked_keywords_and_layers() -> None:
    model = TransformerWithHeavyLayer(vocab_size=10000, d_model=512, nhead=8, num_layers=4)
    assert model.heavy.implementation == "slow"
    assert len(model.blocks) == 4 and isinstance(model.heavy, HeavyBlock)
    assert model.output_projection.weight.shape == (10000, 512)


@pytest.mark.parametrize("heavy", ["slow", "loop"])
def test_implementations_agree_in_output_and_every_gradient(heavy: str) -> None:
    wanted, found = gradients("fast"), gradients(heavy)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)


def test_attention_sees_no_later_token() -> None:
    torch.manual_seed(0)
    qkv, out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
    x = torch.randn(1, 6, 8)
    changed = x.clone()
    changed[0, 4] += 1
    before, after = attention_layer(x, qkv, out, 2), attention_layer(changed, qkv, out, 2)
    assert torch.equal(before[0, :4], after[0, :4])
    assert not torch.allclose(before[0, 4:], after[0, 4:])


def test_positions_are_distinguished() -> None:
    pattern = PositionalEncoding(16)(torch.zeros(1, 64, 16))[0]
    assert torch.cdist(pattern, pattern).add(torch.eye(64)).min() > 0.1


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_script_trains_in_a_copied_folder(tmp_path: Path, dtype: str) -> None:
    copy_starter(find("python-backtrace"), tmp_path)
    options = ["--epochs", "3", "--batches", "4", "--device", "cpu", "--dtype", dtype]
    done = warm_torch.run(["train_model.py", *options, *TINY_ARGUMENTS], tmp_path, os.environ)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines()]
    assert len(losses) == 3 and all(math.isfinite(loss) for loss in losses)
    assert losses[0] > losses[1] > losses[2]


def test_same_seed_same_batches_and_the_next_word_can_be_learnt(tmp_path: Path) -> None:
    from profiling_lab.demo.training import training_script

    with training_script() as script:
        first, again, other = (list(script.create_dummy_dataloader(4, 16, 50, 2, seed)) for seed in (0, 0, 1))
    assert all(
        torch.equal(a, b)
        for left, right in zip(first, again, strict=True)
        for a, b in zip(left, right, strict=True)
    )
    assert not torch.equal(first[0][0], other[0][0])
    follower: dict[int, int] = {}
    for data, target in first:
        assert data.shape == target.shape == (4, 16)
        for word, following in zip(data.flatten().tolist(), target.flatten().tolist(), strict=True):
            assert follower.setdefault(word, following) == following
