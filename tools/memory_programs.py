# SPDX-License-Identifier: Apache-2.0
"""Small programs that use GPU memory in different ways, for tools/record_memory.py.

python tools/memory_programs.py NAME --out DIR

Each writes DIR/NAME.json with torch's own peak, and torch's snapshot as DIR/NAME.pickle.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS, LAYERS, STEPS = 1024, 2048, 6, 8


class Block(nn.Module):
    """Two linear layers and a residual."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks, and scores."""

    def __init__(self, width=WIDTH, layers=LAYERS, again=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.scores = nn.Linear(width, 1000)
        self.again = again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.scores(x)


def batch():
    """Inputs and labels on the GPU."""
    return torch.randn(ROWS, WIDTH, device="cuda"), torch.randint(1000, (ROWS,), device="cuda")


def training(steps=STEPS, set_to_none=True, again=False, after=None, amp=False, net=None):
    """An ordinary loop. `after` is called with each loss."""
    model = (net or Net(again=again)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for _ in range(steps):
        x, labels = batch()
        optimizer.zero_grad(set_to_none=set_to_none)
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = F.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if after is not None:
            after(loss, x)
    torch.cuda.synchronize()


def eager():
    training()


def checkpointing():
    training(again=True)


def list_of_activations():
    seen = []

    def keep(loss, x):
        seen.append(torch.relu(x))

    training(after=keep)


def logged_loss():
    history = []

    def log(loss, x):
        history.append(loss * 1.0)

    training(after=log)


def out_of_memory():
    torch.cuda.set_per_process_memory_fraction(1.2e9 / torch.cuda.get_device_properties(0).total_memory)
    try:
        model = Net().cuda()
        x = torch.randn(ROWS, WIDTH, device="cuda")
        kept = []
        for _ in range(1000):
            kept.append(model(x))
    except torch.cuda.OutOfMemoryError as error:
        print(str(error)[:400])


def fragmentation():
    small = []
    for number in range(200):
        small.append(torch.empty((2 + number % 3) << 20, dtype=torch.uint8, device="cuda"))
    del small[::2]
    large = [torch.empty(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    odd = torch.empty((19 << 20) + (1 << 19), dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    print(len(small), len(large), odd.numel())


def zero_grad():
    training(set_to_none=False)


def amp():
    training(amp=True)


def inference():
    model = Net().cuda().eval()
    with torch.no_grad():
        for _ in range(STEPS):
            model(batch()[0]).argmax(1)
    torch.cuda.synchronize()


def cuda_graph():
    model = Net(layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    x, labels = batch()

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(STEPS):
        graph.replay()
    torch.cuda.synchronize()


def expandable():
    """Started with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."""
    training()


def streams():
    """Blocks that another stream still uses when they are freed."""
    side = torch.cuda.Stream()
    for number in range(50):
        x = torch.randn(1 << (16 + number % 8), device="cuda")
        with torch.cuda.stream(side):
            y = x * 2
            x.record_stream(side)
        del x, y
    torch.cuda.synchronize()


PROGRAMS = {
    "eager": eager,
    "checkpointing": checkpointing,
    "list_of_activations": list_of_activations,
    "logged_loss": logged_loss,
    "out_of_memory": out_of_memory,
    "fragmentation": fragmentation,
    "zero_grad": zero_grad,
    "amp": amp,
    "inference": inference,
    "cuda_graph": cuda_graph,
    "expandable": expandable,
    "streams": streams,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    PROGRAMS[args.name]()
    facts = {
        "torch": torch.__version__,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
        "allocated_bytes": torch.cuda.memory_allocated(),
        "history": torch._C._cuda_isHistoryEnabled(),
        "settings": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    }
    (args.out / f"{args.name}.json").write_text(json.dumps(facts))
    torch.cuda.memory._dump_snapshot(str(args.out / f"{args.name}.pickle"))
    print(facts, file=sys.stderr)


if __name__ == "__main__":
    main()
