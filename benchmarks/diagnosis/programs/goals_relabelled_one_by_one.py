# SPDX-License-Identifier: Apache-2.0
"""A robot arm learns to reach goals (DDPG in one file): what it has reached instead counts as a goal, too."""

import copy
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


@dataclass
class Args:
    seed: int = 1
    episodes: int = 4000 if DEVICE == "cuda" else 5  # in the replay buffer
    length: int = 50 if DEVICE == "cuda" else 4
    sensors: int = 24
    motors: int = 6
    batch_size: int = 4096 if DEVICE == "cuda" else 10
    hidden: int = 512 if DEVICE == "cuda" else 8
    relabelled: int = 5  # all but one of this number of transitions get a new goal
    near: float = 0.5
    gamma: float = 0.98
    tau: float = 0.005
    learning_rate: float = 1e-3


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class ReplayBuffer:
    def __init__(self, args: Args) -> None:
        self.args, self.rng = args, np.random.default_rng(args.seed)
        shape = (args.episodes, args.length + 1)
        self.observation = self.rng.standard_normal((*shape, args.sensors), dtype=np.float32)
        self.achieved = np.cumsum(0.1 * self.rng.standard_normal((*shape, 3), dtype=np.float32), axis=1)
        self.desired = self.rng.standard_normal((args.episodes, 3), dtype=np.float32)
        self.action = self.rng.standard_normal((*shape, args.motors), dtype=np.float32).clip(-1, 1)

    def sample(self) -> dict[str, torch.Tensor]:
        arrays = self.sample_all() if MENDED else self.sample_in_turn()
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if DEVICE == "cuda":
            batch = {name: part.pin_memory().to(DEVICE, non_blocking=True) for name, part in batch.items()}
        return batch

    def sample_in_turn(self) -> dict[str, np.ndarray]:
        transitions = []
        for number in range(self.args.batch_size):
            episode = int(self.rng.random() * self.args.episodes)
            t = int(self.rng.random() * self.args.length)
            future = t + 1 + int(self.rng.random() * (self.args.length - t))
            goal = self.desired[episode]
            if number % self.args.relabelled:
                goal = self.achieved[episode, future]
            transition = {
                "obs": np.concatenate([self.observation[episode, t], goal]),
                "next_obs": np.concatenate([self.observation[episode, t + 1], goal]),
                "action": self.action[episode, t],
                "reward": np.float32(np.linalg.norm(self.achieved[episode, t + 1] - goal) < self.args.near),
            }
            transitions.append(transition)
        return {name: np.stack([transition[name] for transition in transitions]) for name in transitions[0]}

    def sample_all(self) -> dict[str, np.ndarray]:
        drawn = self.rng.random((self.args.batch_size, 3))
        episode = (drawn[:, 0] * self.args.episodes).astype(np.int64)
        t = (drawn[:, 1] * self.args.length).astype(np.int64)
        future = t + 1 + (drawn[:, 2] * (self.args.length - t)).astype(np.int64)
        new = np.arange(self.args.batch_size) % self.args.relabelled > 0
        goal = np.where(new[:, None], self.achieved[episode, future], self.desired[episode])
        off = np.linalg.norm(self.achieved[episode, t + 1] - goal, axis=1)
        return {
            "obs": np.concatenate([self.observation[episode, t], goal], axis=1),
            "next_obs": np.concatenate([self.observation[episode, t + 1], goal], axis=1),
            "action": self.action[episode, t],
            "reward": (off < self.args.near).astype(np.float32),
        }


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs)).to(DEVICE)


def main() -> None:
    args = Args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    rb = ReplayBuffer(args)
    actor = mlp(args.sensors + 3, args.hidden, args.motors)
    qf1 = mlp(args.sensors + 3 + args.motors, args.hidden, 1)
    nets = nn.ModuleList([actor, qf1])
    target_actor, qf1_target = targets = copy.deepcopy(nets)
    q_optimizer = torch.optim.Adam(qf1.parameters(), lr=args.learning_rate, fused=DEVICE == "cuda")
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.learning_rate, fused=DEVICE == "cuda")
    for global_step in range(STEPS):
        if global_step == WARM:
            began = start_clock()
        data = rb.sample()
        with torch.no_grad():
            ahead = torch.cat([data["next_obs"], target_actor(data["next_obs"]).tanh()], dim=1)
            next_q = data["reward"] + args.gamma * qf1_target(ahead).flatten()
        qf1_loss = F.mse_loss(qf1(torch.cat([data["obs"], data["action"]], dim=1)).flatten(), next_q)
        q_optimizer.zero_grad()
        qf1_loss.backward()
        q_optimizer.step()
        qf1.requires_grad_(False)
        actor_loss = -qf1(torch.cat([data["obs"], actor(data["obs"]).tanh()], dim=1)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        qf1.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(targets.parameters()), list(nets.parameters()), args.tau)
    report(began, qf1_loss)


if __name__ == "__main__":
    main()
