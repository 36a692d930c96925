# SPDX-License-Identifier: Apache-2.0
"""Processes run the ops on DTensors, and a small model under FSDP2 and tensor parallel: results and gradients
must be those of one process in plain torch, in float64, and what needs no communication must have none.

Run by test_sharded.py in processes of their own: sharded_workers.py <processes>. Prints what was proven.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from profiling_lab.ops import (
    HeavyLayer,
    LayerNormGelu,
    flash_attention,
    heavy_layer,
    ladder_attention,
    layer_norm_gelu,
    layer_norm_gelu_residual,
)
from profiling_lab.ops._attention_in_torch import reference as attention_reference
from profiling_lab.ops.heavy_layer import reference as heavy_reference
from profiling_lab.ops.layer_norm_gelu import reference as norm_reference
from profiling_lab.ops.layer_norm_gelu import reference_residual

D = 8


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def run(function: Callable[..., Any], inputs: list[Tensor]) -> tuple[list[Any], list[Any], int]:
    """Results, gradients, and how often the processes communicated in the forward."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    with CommDebugMode() as communication:
        results = function(*leaves)
    results = list(results) if isinstance(results, tuple) else [results]
    sum((i + 1) * (r * r.sin()).sum() for i, r in enumerate(results)).backward()
    return results, [t.grad for t in leaves], communication.get_total_counts()


def compare(
    what: str, ours: Callable[..., Any], plain: Callable[..., Any], whole: list[Tensor], parts: list[Tensor]
) -> tuple[list[Any], list[Any], int]:
    results, grads, communicated = run(ours, parts)
    truth, true_grads, _ = run(plain, whole)
    for found, expected in zip(results + grads, truth + true_grads, strict=True):
        assert isinstance(found, DTensor), what
        torch.testing.assert_close(found.full_tensor(), expected, msg=lambda text: f"{what}: {text}")
    if dist.get_rank() == 0:
        print("proven", what, flush=True)
    return results, grads, communicated


# name: function, plain torch, how many tensors have x's shape, shapes of the others
ROWS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int, list[tuple[int, ...]]]] = {
    "layer_norm_gelu": (layer_norm_gelu, norm_reference, 1, [(D,), (D,)]),
    "layer_norm_gelu without bias": (layer_norm_gelu, norm_reference, 1, [(D,)]),
    "layer_norm_gelu_residual": (layer_norm_gelu_residual, reference_residual, 2, [(D,), (D,)]),
    "heavy_layer": (heavy_layer, heavy_reference, 1, [(D, D)] * 3 + [(D,)]),
    "heavy_layer slow": (
        lambda *inputs: heavy_layer(*inputs, implementation="slow"),
        heavy_reference, 1, [(D, D)] * 3 + [(D,)],
    ),
}  # fmt: skip


def prove_rows(mesh: Any) -> None:
    """Sharded over one dimension that is not the last: each rank has its rows, nothing is sent."""
    shape = (8, 4, D)
    for name, (ours, plain, rows, others) in ROWS.items():
        torch.manual_seed(0)
        whole = [draw(*shape) for _ in range(rows)] + [draw(*other) for other in others]
        everywhere = [Replicate()] * mesh.ndim
        ways: dict[str, list[Any]] = {
            f"dimension {dim}": [Shard(dim), *everywhere[1:]] for dim in range(len(shape) - 1)
        }
        if mesh.ndim == 2:
            ways["dimensions 0 and 1"] = [Shard(0), Shard(1)]
        for way, place in ways.items():
            places = [place] * rows + [everywhere] * len(others)
            parts = [distribute_tensor(t, mesh, p) for t, p in zip(whole, places, strict=True)]
            results, grads, sent = compare(f"{name}, {way}", ours, plain, whole, parts)
            assert sent == 0, f"{name}: the forward communicated {sent} times"
            assert all(r.placements == tuple(place) for r in results + grads[:rows]), name
            summed = tuple(Partial() if p.is_shard() else Replicate() for p in place)
            assert all(g.placements == summed for g in grads[rows:]), f"{name}: {grads[-1].placements}"
        columns = [Shard(len(shape) - 1), *everywhere[1:]]
        places = [columns] * rows + [everywhere] * len(others)
        parts = [distribute_tensor(t, mesh, p) for t, p in zip(whole, places, strict=True)]
        compare(f"{name}, columns gathered", ours, plain, whole, parts)


def prove_statistics(mesh: Any) -> None:
    """The forward's result that only the backward sees: 2 numbers for each row of x."""
    torch.manual_seed(0)
    whole = [draw(8, 4, D), draw(D), draw(D)]
    op = torch.ops.profiling_lab.layer_norm_gelu.default
    _, expected = op(*whole, 1e-5, "none")
    for dim in (0, 1):
        places = [Shard(dim), Replicate(), Replicate()]
        parts = [distribute_tensor(t, mesh, [p]) for t, p in zip(whole, places, strict=True)]
        _, statistics = op(*parts, 1e-5, "none")
        assert statistics.placements == (Shard(dim + 1),)
        torch.testing.assert_close(statistics.full_tensor(), expected)
    if dist.get_rank() == 0:
        print("proven statistics", flush=True)


def prove_ladder(mesh: Any) -> None:
    torch.manual_seed(0)
    whole = [draw(4, 6, 4, D) for _ in "qkv"]
    for place in (Shard(0), Shard(2)):
        parts = [distribute_tensor(t, mesh, [place] + [Replicate()] * (mesh.ndim - 1)) for t in whole]
        what = f"ladder_attention, {place}"
        results, _, sent = compare(what, ladder_attention, attention_reference, whole, parts)
        assert sent == 0 and results[0].placements[0] == place, what


def prove_tensor_parallel_heavy_layer(mesh: Any) -> None:
    """w1 by columns and w2 by rows: each rank has a part of the sum x w1 w2, and no weight is gathered."""
    torch.manual_seed(0)
    whole = [draw(4, 6, D), *(draw(D, D) for _ in range(3)), draw(D)]
    none = Replicate()
    for name, places in (
        ("w1 columns, w2 rows", [none, Shard(1), Shard(0), none, none]),
        ("w3 columns", [none, none, none, Shard(1), Shard(0)]),
    ):
        parts = [distribute_tensor(t, mesh, [p]) for t, p in zip(whole, places, strict=True)]
        results, grads, sent = compare(f"heavy_layer, {name}", heavy_layer, heavy_reference, whole, parts)
        for part, grad in zip(parts[1:], grads[1:], strict=True):
            (place,) = part.placements
            assert place.is_replicate() or grad.placements == (place,), f"{name}: {grad.placements}"
        if places[1] == Shard(1):
            assert sent == 1, f"{name}: {sent} communications, expected the sum"
        else:
            assert sent == 0 and results[0].placements == (Shard(2),), f"{name}: {results[0].placements}"


def prove_compiled(mesh: Any) -> None:
    """First of all in a process, so that no call without torch.compile has made the rules known."""
    torch.manual_seed(0)
    whole = [draw(8, 4, D), draw(D), draw(D)]
    places = [Shard(0), Replicate(), Replicate()]
    parts = [distribute_tensor(t, mesh, [p]) for t, p in zip(whole, places, strict=True)]
    compiled = torch.compile(layer_norm_gelu, fullgraph=True, backend="aot_eager")
    leaves = [t.detach().requires_grad_() for t in parts]
    y = compiled(*leaves)
    (y * y.sin()).sum().backward()
    truth, true_grads, _ = run(norm_reference, whole)
    for found, expected in zip([y, *(t.grad for t in leaves)], truth + true_grads, strict=True):
        torch.testing.assert_close(found.full_tensor(), expected)
    assert y.placements == (Shard(0),)
    if dist.get_rank() == 0:
        print("proven layer_norm_gelu, compiled", flush=True)


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim, heads = head_dim, 4
        self.q, self.k, self.v = (nn.Linear(width, heads * head_dim, bias=False) for _ in "qkv")
        self.o = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q, self.k, self.v))
        return self.o(flash_attention(q, k, v, causal=True).flatten(2))


class Model(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, width: int = D, head_dim: int = 4) -> None:
        super().__init__()
        self.attention = Attention(width, head_dim)
        self.norm, self.heavy = LayerNormGelu(width), HeavyLayer(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.heavy(self.norm(x))


class HeavyParallel(ParallelStyle):  # type: ignore[misc]  # torch is untyped here
    """w1 by columns, w2 by rows; what comes in and goes out is everywhere whole."""

    def _apply(self, module: nn.Module, mesh: Any) -> nn.Module:
        places = {"w1": Shard(1), "w2": Shard(0)}

        def shard(_: str, part: nn.Module, mesh: Any) -> None:
            for name, weight in list(part.named_parameters(recurse=False)):
                sharded = distribute_tensor(weight, mesh, [places.get(name, Replicate())])
                part.register_parameter(name, nn.Parameter(sharded))

        def whole(_: nn.Module, inputs: Any, mesh: Any) -> Any:
            x = inputs[0] if isinstance(inputs[0], DTensor) else DTensor.from_local(inputs[0], mesh)
            return x.redistribute(placements=[Replicate()])

        def local(_: nn.Module, out: Any, mesh: Any) -> Any:
            return out.redistribute(placements=[Replicate()]).to_local()

        return distribute_module(module, mesh, shard, whole, local)


def tensor_parallel(model: nn.Module, mesh: Any) -> None:
    heads = ColwiseParallel(use_local_output=False)  # DTensors reach flash_attention
    sequence = SequenceParallel(sequence_dim=1, use_local_output=False)  # and layer_norm_gelu
    plan = {f"attention.{name}": heads for name in "qkv"}
    plan |= {"attention.o": RowwiseParallel(), "heavy": HeavyParallel()}
    parallelize_module(model, mesh, plan)
    split = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
    for style in (split, sequence):
        parallelize_module(model.norm, mesh, style)


def prove_model(mesh: Any, name: str) -> None:
    torch.manual_seed(0)
    model, truth = Model().double(), Model().double()
    truth.load_state_dict(model.state_dict())
    truth_step = torch.optim.SGD(truth.parameters(), lr=0.1)
    groups = 1
    if "tensor parallel" in name:
        tensor_parallel(model, mesh["tp"])
    if "FSDP" in name:
        groups = mesh["dp"].size()
        for module in (model.attention, model.norm, model.heavy, model):
            fully_shard(module, mesh=mesh["dp"])
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = draw(8, 4, D)
    rank = mesh["dp"].get_local_rank() if groups > 1 else 0
    for _ in range(3):  # gradients that are wrong show in the parameters
        truth_loss = truth(batch).square().mean()
        loss = model(batch.chunk(groups)[rank]).square().mean()
        for optimizer, of in ((step, loss), (truth_step, truth_loss)):
            optimizer.zero_grad()
            of.backward()
            optimizer.step()
    for (key, found), expected in zip(model.named_parameters(), truth.parameters(), strict=True):
        whole = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(whole, expected, msg=lambda text, key=key: f"{name}, {key}: {text}")
    if dist.get_rank() == 0:
        print("proven", name, flush=True)


def work(rank: int, store: str, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    line = init_device_mesh("cpu", (world,))
    prove_compiled(line)
    prove_rows(line if world == 2 else init_device_mesh("cpu", (2, world // 2)))
    prove_statistics(line)
    prove_ladder(line)
    prove_tensor_parallel_heavy_layer(line)
    prove_model(init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)), "FSDP2")
    prove_model(init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), "tensor parallel")
    if world == 4:
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        prove_model(both, "FSDP2 and tensor parallel")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        count = int(sys.argv[1])
        # A fork has imported torch already; no thread of it has started yet.
        mp.start_processes(work, args=(f"{folder}/store", count), nprocs=count, start_method="fork")
