# SPDX-License-Identifier: Apache-2.0
"""A robot arm learns from demonstrations: a transformer reads what joints felt, and says how to move them."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
TRAIN_STEPS, SKIP = (30, 8) if CUDA else (3, 1)
BATCH, CHUNK, SENSED, JOINTS = (512, 32, 16, 7) if CUDA else (4, 4, 3, 2)


class Demonstrations(Dataset):
    """Pieces of episodes, with a little noise on what was sensed."""

    def __init__(self, episodes: int, length: int):
        rng = np.random.default_rng(1)
        self.sensed = rng.standard_normal((episodes, length, SENSED), dtype=np.float32)
        self.moves = rng.standard_normal((episodes, length, JOINTS), dtype=np.float32)

    def __len__(self) -> int:
        return TRAIN_STEPS * BATCH

    def __getitem__(self, index: int) -> dict:
        rng = np.random.default_rng(index)
        episode = rng.integers(len(self.sensed))
        begin = rng.integers(self.sensed.shape[1] - CHUNK)
        sensed = self.sensed[episode, begin : begin + CHUNK]
        noise = 0.01 * rng.standard_normal(sensed.shape, dtype=np.float32)
        return {"obs": sensed + noise, "action": self.moves[episode, begin : begin + CHUNK]}


def keep(samples: list) -> list:
    """Samples stay as they are: which of them a policy wants, it knows itself."""
    return samples


class Policy(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.obs_in = nn.Linear(SENSED, width)
        self.position = nn.Parameter(torch.randn(CHUNK, width) * 0.02)
        options = dict(dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        layer = nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.action_out = nn.Linear(width, JOINTS)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.action_out(self.encoder(self.obs_in(obs) + self.position))


class BehaviourCloning:
    def __init__(self, policy: Policy):
        self.policy = policy.to(DEVICE)
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=CUDA)

    def as_tensor(self, samples: list, key: str) -> torch.Tensor:
        values = [sample[key] for sample in samples]
        if MENDED:
            tensor = torch.from_numpy(np.stack(values))
        else:
            tensor = torch.tensor(values)
        return tensor.pin_memory().to(DEVICE, non_blocking=True) if CUDA else tensor

    def update(self, samples: list) -> torch.Tensor:
        obs, action = self.as_tensor(samples, "obs"), self.as_tensor(samples, "action")
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            predicted = self.policy(obs)
        loss = nn.functional.l1_loss(predicted.float(), action)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(
        Demonstrations(*((200, 400) if CUDA else (3, 12))),
        batch_size=BATCH,
        collate_fn=keep,
        num_workers=6 if CUDA else 1,
        prefetch_factor=4,
    )
    agent = BehaviourCloning(Policy(*((512, 6) if CUDA else (16, 1))))
    for step, samples in enumerate(loader):
        if step == SKIP:
            if CUDA:
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = agent.update(samples)
    error = loss.item()
    step_ms = 1000 * (time.perf_counter() - start) / (TRAIN_STEPS - SKIP)
    print(f"step_ms {step_ms:.3f} loss {error:.6f}")


if __name__ == "__main__":
    main()
