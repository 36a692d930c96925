# SPDX-License-Identifier: Apache-2.0
"""Populations of walkers: policies are changed at random, all try at once, and the good changes are kept."""

import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Population:
    """Networks of three layers that all differ; the weights of a layer of all of them are one tensor."""

    def __init__(self, members: int, seen: int, width: int, moves: int, spread: float) -> None:
        self.spread = spread
        sizes = ((seen, width), (width, width), (width, moves))
        self.means = [torch.randn(size, device=DEVICE) / size[0] ** 0.5 for size in sizes]
        self.noise = [torch.empty(members, *size, dtype=torch.bfloat16, device=DEVICE) for size in sizes]
        self.weights = [torch.empty_like(noise) for noise in self.noise]

    def draw(self) -> None:
        """Members come in pairs, with a change and its opposite."""
        for mean, noise, weights in zip(self.means, self.noise, self.weights, strict=True):
            half = len(noise) // 2
            noise[:half].normal_()
            torch.neg(noise[:half], out=noise[half:])
            torch.add(mean.to(torch.bfloat16), noise, alpha=self.spread / mean.shape[0] ** 0.5, out=weights)

    def act(self, seen: torch.Tensor) -> torch.Tensor:
        x = seen
        for weights in self.weights[:-1]:
            x = torch.bmm(x, weights).relu_()
        return torch.bmm(x, self.weights[-1]).float().tanh_()

    def learn(self, worth: torch.Tensor, rate: float) -> None:
        """Goes where changes were worth more than others."""
        order = worth.argsort().argsort().float() / (len(worth) - 1) - 0.5
        for mean, noise in zip(self.means, self.noise, strict=True):
            mean += rate / len(worth) * (order.to(noise.dtype) @ noise.flatten(1)).view_as(mean)


class Walkers:
    """Bodies of many joints, which are springs that each move pushes; those who go far are worth much."""

    def __init__(self, members: int, walkers: int, joints: int) -> None:
        self.start = 0.1 * torch.randn(1, walkers, 2 * joints, device=DEVICE)
        self.members = members
        self.pull = torch.randn(joints, joints, device=DEVICE) / joints**0.5

    def play(self, population: Population, moments: int) -> torch.Tensor:
        angle, speed = self.start.expand(self.members, -1, -1).chunk(2, dim=2)
        gone = torch.zeros(self.members, device=DEVICE)
        for _ in range(moments):
            moves = population.act(torch.cat((angle, speed), dim=2).to(torch.bfloat16))
            force = moves - angle - 0.2 * speed
            speed = torch.add(speed, force, alpha=0.05)
            angle = torch.add(angle, speed, alpha=0.05)
            gone += ((angle @ self.pull).sin_() * speed).mean(dim=(1, 2))
        return gone


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    members, walkers, joints, width, moments = (
        (256, 512, 32, 2048, 20) if DEVICE == "cuda" else (4, 3, 2, 8, 3)
    )
    population = Population(members, 2 * joints, width, joints, 0.05)
    bodies = Walkers(members, walkers, joints)
    worth = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        population.draw()
        gone = bodies.play(population, moments)
        population.learn(gone, 1.0)
        worth[step] = gone.mean()
    report(began, worth.mean())


if __name__ == "__main__":
    main()
