# SPDX-License-Identifier: Apache-2.0
"""Writes fake_recording.sqlite: two training steps of a tiny CPU model with a fake kernel per operator.

g++ -std=c++20 -shared -fPIC -Icsrc tests/recorder/fake_cupti/fake_cupti.cpp -o build/libfake_cupti.so
PROFILING_LAB_CUPTI=build/libfake_cupti.so python tests/recorder/fake_recording.py OUT.sqlite
"""

from __future__ import annotations

import sqlite3
import sys

import torch
from fake_driver import Fake, launch_per_operator

import profiling_lab


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(hidden)


def training_step(model: Block, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def portable(path: str) -> str:
    """The same file name on every machine: the model is the user's code, everything else a library."""
    if path.endswith("/fake_recording.py"):
        return "/project/fake_recording.py"
    return "/usr/lib/python3/site-packages/" + path.split("/site-packages/")[-1].split("/recorder/")[-1]


def main(path: str) -> None:
    fake = Fake()
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8)
    with profiling_lab.record(path, overwrite=True, script="fake_recording.py"), launch_per_operator(fake):
        for _ in range(2):
            fake.copy(nbytes=x.nbytes)
            training_step(model, optimizer, x)
            fake.call(165)
    with sqlite3.connect(path) as file:  # small pages: most tables hold a handful of rows
        for (old,) in file.execute("SELECT value FROM StringIds WHERE value LIKE '/%.py'").fetchall():
            file.execute("UPDATE StringIds SET value = ? WHERE value = ?", (portable(old), old))
        file.execute("DELETE FROM PYREC_META WHERE name = 'cupti_path'")
    file.execute("PRAGMA page_size = 512")
    file.execute("VACUUM")
    file.close()


if __name__ == "__main__":
    main(sys.argv[1])
