# SPDX-License-Identifier: Apache-2.0
"""Train one small model on several processes in each of the usual ways, with this package's ops.

    python train_model.py                                               one process, the reference
    torchrun --nproc-per-node 2 train_model.py --way ddp                or fsdp2, tensor
    torchrun --nproc-per-node 2 train_model.py --way zero3              or zero1, zero2: needs deepspeed
    profiling-lab record -o run.sqlite torchrun --nproc-per-node 2 train_model.py --way ddp
    ... --width 1024 --head-dim 64 --blocks 4 --words 8192 --length 512        for a GPU

Every way sees the same batches and prints the loss of each step, the mean over all processes: it must be the
reference's. Processes use NCCL where each has a GPU, else gloo on the CPU.
"""

import argparse
import gc
import os
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from profiling_lab.ops import HeavyLayer, LayerNormGelu, flash_attention

WAYS = ("single", "ddp", "fsdp2", "tensor", "zero1", "zero2", "zero3")
DATA_PARALLEL = ("ddp", "fsdp2", "zero1", "zero2", "zero3")


class Attention(nn.Module):
    """One projection each for q, k and v, so that tensor parallel can divide them by heads."""

    def __init__(self, width, head_dim):
        super().__init__()
        self.head_dim = head_dim
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q, self.k, self.v))
        return self.out(flash_attention(q, k, v, causal=True).flatten(2))


class Hidden(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.heavy = LayerNormGelu(width), HeavyLayer(width)

    def forward(self, x):
        return self.heavy(self.norm(x))


class Block(nn.Module):
    def __init__(self, width, head_dim):
        super().__init__()
        self.attention, self.hidden = Attention(width, head_dim), Hidden(width)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.hidden(x)


class Model(nn.Module):
    def __init__(self, words, width, head_dim, blocks):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, head_dim) for _ in range(blocks))
        self.scores = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.scores(x).flatten(0, 1)


def fully_sharded(model):
    """FSDP2: a block's weights are gathered before it runs."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def tensor_parallel(model, device):
    """Attention divided by heads, norm and HeavyLayer by rows of the sequence."""
    from torch.distributed.tensor import Replicate, Shard, init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    heads, rows = ColwiseParallel(use_local_output=False), SequenceParallel(use_local_output=False)
    plan = {f"attention.{name}": heads for name in "qkv"}
    plan |= {"attention.out": RowwiseParallel(), "hidden.norm": rows, "hidden.heavy": rows}
    split = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
    whole = PrepareModuleOutput(output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),))
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
        for style in (split, whole):
            parallelize_module(block.hidden, mesh, style)
    return model


def deepspeed_engine(model, stage, batch, lr, autocast):
    """ZeRO: stage 1 shards the optimizer's state, 2 the gradients too, 3 the weights too."""
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()  # it would compile C++ of its own: torch's communication does
    bucket = max(4096, sum(weight.numel() for weight in model.parameters()) // 8)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        config={
            "train_micro_batch_size_per_gpu": batch,
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,  # it clips at 1 if nothing is said
            # The engine turns an autocast around it off, unless its own is on.
            "torch_autocast": {"enabled": autocast, "dtype": "bfloat16"},
            "zero_optimization": {
                "stage": stage,
                # So that a model has several buckets, however small it is.
                "reduce_bucket_size": bucket,
                "stage3_prefetch_bucket_size": bucket,
                "stage3_param_persistence_threshold": 0,
            },
        },
    )
    return engine


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=WAYS, default="single")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--batch", type=int, default=8, help="sequences per step, of all processes together (8)"
    )
    parser.add_argument("--words", type=int, default=64, help="size of the vocabulary (64)")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--length", type=int, default=16, help="of a sequence (16)")
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument(
        "--autocast", action="store_true", help="compute in bfloat16 where torch's autocast does, as on GPUs"
    )
    parser.add_argument("--local_rank", "--local-rank", type=int, help="given by some launchers")
    args = parser.parse_args(argv)
    world = int(os.environ.get("WORLD_SIZE", 1))
    if (args.way == "single") != (world == 1):
        parser.error(f"--way {args.way} does not fit {world} processes: torchrun starts several")
    if args.way.startswith("zero") and find_spec("deepspeed") is None:
        parser.error(f"--way {args.way} needs deepspeed, which is not installed: pip install deepspeed")
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= world
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    parts = world if args.way in DATA_PARALLEL else 1
    if args.batch % parts:
        parser.error(f"--batch {args.batch} cannot be divided among {parts} processes")
    if world > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank() if world > 1 else 0

    autocast = args.autocast or on_gpu  # on GPUs the kernels of attention compute in 16 bits

    torch.manual_seed(0)
    model = Model(args.words, args.width, args.head_dim, args.blocks).to(device)
    if args.way == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    elif args.way == "fsdp2":
        model = fully_sharded(model)
    elif args.way == "tensor":
        model = tensor_parallel(model, device)
    if args.way.startswith("zero"):
        model = deepspeed_engine(model, int(args.way[-1]), args.batch // parts, args.lr, autocast)
        step, backward, optimizer = model.step, model.backward, None
    else:
        # foreach takes no DTensors together with plain tensors.
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, foreach=False)
        step, backward = optimizer.step, torch.Tensor.backward

    data = torch.Generator().manual_seed(1)
    tokens = torch.randint(args.words, (args.batch, args.length + 1), generator=data)
    tokens = tokens.chunk(parts)[rank % parts].to(device)
    for number in range(args.steps):
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores, tokens[:, 1:].flatten())
        backward(loss)
        step()
        mean = loss.detach().clone()
        if world > 1:
            dist.all_reduce(mean)
        if rank == 0:
            print(f"step {number}: loss {mean.item() / world:.6f}", flush=True)
    if world > 1:
        dist.barrier()
        # FSDP2's hooks hold the group. If they let go of it when Python ends, some processes abort.
        model = optimizer = step = backward = scores = loss = None
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
