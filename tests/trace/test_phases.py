# SPDX-License-Identifier: Apache-2.0
"""Forward, backward, recomputation and optimizer, found on built stacks and on those of torch."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from builders import Stack, TraceBuilder

from profiling_lab.analysis.coverage import IN_HOOKS
from profiling_lab.analysis.lines import LineRow, lines
from profiling_lab.trace import Trace
from profiling_lab.trace.phases import LINE_PHASES
from profiling_lab.trace.window import WindowSelection

TORCH = "/v/site-packages/torch"
ENGINE = f"{TORCH}/autograd/graph.py:979 _engine_run_backward"
IN_TORCH = f"{TORCH}/_tensor.py:623 backward > {TORCH}/autograd/__init__.py:395 backward"
CALLS = f"/app/train.py:28 main > {IN_TORCH} > {ENGINE}"
APPLY = f"{TORCH}/autograd/function.py:325 apply"
CHECKPOINT = f"{TORCH}/utils/checkpoint.py"
LAYER = f"/app/model.py:15 block > {TORCH}/nn/modules/linear.py:134 forward"
WRAPPER = f"/app/train.py:29 main > {TORCH}/optim/optimizer.py:530 wrapper"


def phases(builder: TraceBuilder, tmp_path: Path) -> tuple[dict[str, str], dict[int, LineRow]]:
    """Phase by the name of the kernel, and rows by line."""
    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    with Trace.open(builder.write(path)) as trace:
        names = [trace.operations.names[i] for i in trace.operations.name.tolist()]
        found = [LINE_PHASES[i] for i in trace.attribution.line_phase.tolist()]
        return dict(zip(names, found, strict=True)), {row.line: row for row in lines(trace).rows}


def phase_of(stack: str, tmp_path: Path, **how: Any) -> str:
    builder = TraceBuilder().launch("before", 1, stack="/app/train.py:1 main", peek=1)
    return phases(builder.launch("k", 10, stack=stack, **how), tmp_path)[0]["k"]


NODE: dict[str, Any] = {"node": 0, "node_name": "MmBackward0"}


@pytest.mark.parametrize(
    ("stack", "how", "expected"),
    [
        (f"/app/train.py:27 main > {CHECKPOINT}:519 checkpoint > {LAYER}", {}, "forward"),
        # On the calling thread, and on the engine's own, which shows no engine.
        (f"{CALLS} > {APPLY} > {CHECKPOINT}:314 backward > {LAYER}", NODE, "recompute"),
        (f"{APPLY} > {CHECKPOINT}:314 backward > {LAYER}", NODE | {"thread": 2}, "recompute"),
        (
            f"{CALLS} > {CHECKPOINT}:1183 unpack_hook > {CHECKPOINT}:1650 recompute_fn > {LAYER}",
            NODE,
            "recompute",
        ),
        (f"{CHECKPOINT}:1183 unpack_hook > {LAYER}", NODE | {"thread": 2}, "recompute"),
        # The checkpoint's own work: putting back the state of the random numbers.
        (
            f"{CHECKPOINT}:1183 unpack_hook > {CHECKPOINT}:150 set_device_states",
            NODE | {"thread": 2},
            "recompute",
        ),
        # A checkpoint in a checkpoint, and in the backward that the first one runs.
        (f"{CHECKPOINT}:314 backward > {LAYER} > {CHECKPOINT}:519 checkpoint > {LAYER}", NODE, "recompute"),
        (
            f"{CHECKPOINT}:331 backward > {ENGINE} > {APPLY} > {CHECKPOINT}:314 backward > {LAYER}",
            NODE,
            "recompute",
        ),
        # What the checkpoint runs backward through is backward, Python in it or not.
        (f"{APPLY} > {CHECKPOINT}:331 backward > {ENGINE}", NODE | {"thread": 2}, "backward"),
        (
            f"{CALLS} > {APPLY} > {CHECKPOINT}:331 backward > {ENGINE} > {APPLY} > /app/f.py:9 backward",
            NODE,
            "backward",
        ),
        (CALLS, NODE, "backward"),
        (f"{CALLS} > {APPLY} > /app/f.py:9 backward", NODE, "backward"),
        # No frames of the engine's thread were recorded, but its node was.
        ("", {"node": 0, "node_name": "CheckpointFunctionBackward", "thread": 2}, "recompute"),
        (
            "",
            {"node": 0, "node_name": "torch::autograd::CheckpointFunctionBackward2", "thread": 2},
            "backward",
        ),
        (
            f"{WRAPPER} > {TORCH}/optim/optimizer.py:80 _use_grad > {TORCH}/optim/sgd.py:127 step",
            {},
            "optimizer",
        ),
        (f"/app/train.py:29 main > {TORCH}/optim/optimizer.py:1069 zero_grad", {}, "optimizer"),
        (f"/app/train.py:29 main > {TORCH}/distributed/optim/zero.py:1 step", {}, "optimizer"),
        # The user's own optimizer, and what its step calls.
        (
            f"{WRAPPER} > {TORCH}/utils/_contextlib.py:124 decorate_context > /app/opt.py:19 MyOpt.step",
            {},
            "optimizer",
        ),
        (
            f"{WRAPPER} > /app/opt.py:19 step > /app/opt.py:22 helper > {TORCH}/_tensor.py:1 mul",
            {},
            "optimizer",
        ),
        # In a hook, as each gradient becomes ready.
        (
            f"{TORCH}/utils/hooks.py:1 hook > /app/t.py:3 hook > {TORCH}/optim/sgd.py:127 step",
            NODE | {"node": -1, "thread": 2},
            "optimizer",
        ),
        # A closure given to step is what it is.
        (f"{WRAPPER} > {TORCH}/optim/lbfgs.py:357 step > /app/train.py:5 closure > {LAYER}", {}, "forward"),
        (
            f"{WRAPPER} > {TORCH}/optim/lbfgs.py:357 step > /app/train.py:5 closure > {ENGINE}",
            NODE,
            "backward",
        ),
        (
            f"{WRAPPER} > {TORCH}/optim/lbfgs.py:357 step > {TORCH}/optim/lbfgs.py:297 _gather",
            {},
            "optimizer",
        ),
        (f"/app/train.py:30 main > {TORCH}/nn/utils/clip_grad.py:1 clip_grad_norm_", {}, "forward"),
        ("/app/optim/train.py:30 step", {}, "forward"),
    ],
)
def test_stacks(tmp_path: Path, stack: str, how: dict[str, Any], expected: str) -> None:
    assert phase_of(stack, tmp_path, **({"peek": 2} | how)) == expected


def test_a_range_says_optimizer_where_no_stack_does(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    for name in ("Optimizer.step#AdamW.step", "my_step", "Optimizer.zero_grad#SGD.zero_grad"):
        start = builder.now_ns
        builder.launch(f"in {name}", 10)
        builder.range(name, start - 500, builder.now_ns - 500)
    builder.range("around", 1, 1_900_000).gap(10_000).launch("after", 10)
    path = tmp_path / "t.sqlite"
    with Trace.open(builder.write(path)) as trace:
        assert [LINE_PHASES[i] for i in trace.attribution.line_phase] == [
            "optimizer",
            "forward",
            "optimizer",
            "forward",
        ]
        rows = {row.key: row.optimizer_ns for row in lines(trace, by="kernel").rows}
    assert rows["in Optimizer.step#AdamW.step"] == 10 and rows["after"] == 0


def test_a_window_keeps_the_phases_of_the_whole(tmp_path: Path) -> None:
    """The range that makes it the optimizer's lies outside of what was asked for."""
    builder = TraceBuilder(form="nsys").launch("forward", 10)
    start = builder.now_ns
    builder.launch("one", 10).launch("two", 20)
    builder.range("Optimizer.step#SGD.step", start - 500, builder.now_ns)
    builder.range("inner", builder.now_ns - 5_500, builder.now_ns - 100)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        part = trace.windowed(WindowSelection(nvtx="inner"))
        assert [part.operations.names[i] for i in part.operations.name.tolist()] == ["two"]
        assert [LINE_PHASES[i] for i in part.attribution.line_phase] == ["optimizer"]
        (row,) = lines(part, by="kernel").rows
        assert (row.optimizer_ns, row.share_frac) == (20, 1.0)


def test_both_kinds_of_checkpoints_are_charged_to_their_layer(tmp_path: Path) -> None:
    """With inputs saved, backward of what was recomputed runs inside of the checkpoint's own backward."""
    builder = TraceBuilder().launch("x", 1, stack="/app/train.py:1 main", peek=0)
    builder.launch("fwd", 10, stack=f"/app/train.py:27 main > {CHECKPOINT}:511 checkpoint > {LAYER}", peek=1)
    again = f"{APPLY} > {CHECKPOINT}:314 backward > {LAYER}"
    outer = {"thread": 2, "node": 0, "node_name": "CheckpointFunctionBackward"}
    builder.launch("again", 11, stack=again, peek=1, **outer)
    # Putting the random numbers back is no line of the layer's, but the checkpoint's call has one.
    own_work = f"{APPLY} > {CHECKPOINT}:312 backward > {CHECKPOINT}:150 set_device_states"
    builder.launch("seed", 4, stack=own_work, peek=1, **outer)
    nested = f"{APPLY} > {CHECKPOINT}:331 backward > {TORCH}/autograd/__init__.py:395 backward > {ENGINE}"
    builder.launch("bwd", 20, stack=nested, thread=2, node=0, node_thread=2, node_name="MmBackward0", peek=1)
    found, rows = phases(builder, tmp_path)
    again_too = {"again": "recompute", "seed": "recompute"}
    assert found == {"x": "forward", "fwd": "forward", "bwd": "backward"} | again_too
    row = rows[15]
    assert (row.forward_ns, row.recompute_ns, row.backward_ns) == (10, 15, 20)


def test_python_in_backward_shows_both_lines(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("x", 1, stack="/app/train.py:1 main", peek=0)
    builder.launch("fwd", 10, stack="/app/train.py:5 main > /app/swish.py:3 Swish.forward", peek=1)
    for line, ns in ((9, 20), (10, 30), (9, 1)):
        builder.launch("bwd", ns, stack=f"{APPLY} > /app/swish.py:{line} Swish.backward", thread=2, **NODE)
    # Called from the user's thread, the line that called backward() ran nothing itself.
    builder.launch("gemm_t", 5, stack=CALLS, **NODE)
    _, rows = phases(builder, tmp_path)
    assert rows[3].backward_ns == 56
    assert [(e.frame.line, e.frame.function, e.gpu_ns, e.operations) for e in rows[3].executed] == [
        (10, "Swish.backward", 30, 1),
        (9, "Swish.backward", 21, 2),
    ]


def test_communication_of_hooks_is_a_class_of_its_own(tmp_path: Path) -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    hook = {"thread": 2, "node": -1, "node_name": "torch::autograd::AccumulateGrad"}
    builder = TraceBuilder().launch("fwd", 10, stack=LAYER, peek=1)
    builder.launch(reduce, 100, **hook)
    builder.launch("bucket", 7, **hook)
    builder.launch(
        reduce, 200, stack=f"{TORCH}/distributed/fsdp/_runtime_utils.py:1 _post_backward_hook", **hook
    )
    builder.launch(reduce, 50, stack="/app/train.py:8 my_hook", **hook)
    builder.launch(
        reduce,
        3,
        stack=f"/app/train.py:9 main > {TORCH}/distributed/distributed_c10d.py:1 all_reduce",
        peek=1,
    )
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        result = lines(trace)
    unattributed = {part.reason: (part.ns, part.kernels) for part in result.coverage.unattributed}
    assert unattributed[IN_HOOKS] == (300, 2)
    assert sum(ns for ns, _ in unattributed.values()) == 307, "adding up buckets is no communication"
    rows = {row.line: row for row in result.rows}
    assert (rows[8].backward_ns, rows[9].forward_ns) == (50, 3)


def event(cat: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 11, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(name: str, ts: float, tid: int, correlation: int) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts, 1, tid, correlation=correlation),
        event("kernel", name, ts + 500, 1, 7, correlation=correlation, device=0, stream=7),
    ]


@pytest.mark.parametrize("with_frames", [True, False])
def test_torch_profiler_tells_recomputation_too(tmp_path: Path, with_frames: bool) -> None:
    """By the frames on the engine's thread; without those by the checkpoint's node."""
    engine = "autograd::engine::evaluate_function: "
    forward = {"Sequence number": 3, "Fwd thread id": 0}
    events = [
        event("python_function", "train.py(20): main", 0, 90, 1),
        event("python_function", "model.py(7): forward", 2, 40, 1),
        event("cpu_op", "CheckpointFunction", 5, 30, 1, **forward),
        *launched("fwd", 10, 1, 1),
        event("cpu_op", f"{engine}CheckpointFunctionBackward", 100, 90, 2, **forward | {"Fwd thread id": 1}),
        event("cpu_op", "CheckpointFunctionBackward", 101, 88, 2, **forward | {"Fwd thread id": 1}),
        event("cpu_op", "aten::mm", 110, 10, 2, **{"Sequence number": 8, "Fwd thread id": 0}),
        *launched("again", 112, 2, 2),
        event("cpu_op", f"{engine}MmBackward0", 130, 40, 2, **{"Sequence number": 8, "Fwd thread id": 2}),
        event("cpu_op", "MmBackward0", 131, 38, 2, **{"Sequence number": 8, "Fwd thread id": 2}),
        *launched("bwd", 140, 2, 3),
        event("user_annotation", "Optimizer.step#SGD.step", 200, 20, 1),
        *launched("step", 205, 1, 4),
    ]
    if with_frames:
        events += [
            event("python_function", "torch/utils/checkpoint.py(300): backward", 102, 86, 2),
            event("python_function", "model.py(9): block", 105, 20, 2),
            event("python_function", "torch/autograd/graph.py(970): _engine_run_backward", 128, 50, 2),
        ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with Trace.open(path) as trace:
        names = [trace.operations.names[i] for i in trace.operations.name.tolist()]
        found = dict(zip(names, (LINE_PHASES[i] for i in trace.attribution.line_phase.tolist()), strict=True))
        assert found == {"fwd": "forward", "again": "recompute", "bwd": "backward", "step": "optimizer"}
        rows = {row.line: (row.forward_ns, row.recompute_ns, row.backward_ns) for row in lines(trace).rows}
    if with_frames:  # the layer inside of the checkpoint, else the line that called it
        assert rows == {7: (1000, 0, 0), 9: (0, 1000, 1000)}
    else:
        assert rows == {7: (1000, 1000, 1000)}


class Spy:
    """Stacks of the operators that torch runs, as they are on this version."""

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        seen: list[tuple[str, Stack]] = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                # This file stands for the user's, wherever it lies.
                files = {__file__: "/app/train.py"}
                stack = traceback.extract_stack()[:-1]
                frames = [(f.name, files.get(f.filename, f.filename), f.lineno or 0) for f in stack]
                # How the mode itself is called.
                while frames[-1][1].endswith(("torch/_compile.py", "torch/_dynamo/eval_frame.py")):
                    frames.pop()
                seen.append((str(func), tuple(frames)))
                return func(*args, **(kwargs or {}))

        self.mode = Mode()
        self.seen = seen

    def trace(self, path: Path) -> Path:
        """A kernel of 1 ns for each operator; what stands under the engine's frame is in a node."""
        builder = TraceBuilder()
        for name, stack in self.seen:
            inside = any(function == "_engine_run_backward" for function, _, _ in stack)
            builder.launch(name, 1, stack=stack, peek=1, **(NODE if inside else {}))
        return builder.write(path)


@pytest.mark.parametrize("reentrant", [True, False])
def test_stacks_that_torch_has(tmp_path: Path, reentrant: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(4, 4)

    class Shrink(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)

    def block(x: Any) -> Any:
        return torch.tanh(layer(x))

    sgd = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    lbfgs = torch.optim.LBFGS(layer.parameters(), max_iter=1)

    def closure() -> Any:
        loss = torch.sigmoid(layer(torch.ones(1, 4))).sum()
        loss.backward()
        return loss

    spy = Spy()
    with spy.mode:
        checkpoint(block, torch.randn(2, 4, requires_grad=True), use_reentrant=reentrant).sum().backward()
        sgd.step()
        Shrink(layer.parameters()).step()
        sgd.zero_grad(set_to_none=False)
        lbfgs.step(closure)
    with Trace.open(spy.trace(tmp_path / "t.sqlite")) as trace:
        operations = trace.operations
        found: dict[str, list[str]] = {}
        for name, phase in zip(operations.name.tolist(), trace.attribution.line_phase.tolist(), strict=True):
            found.setdefault(operations.names[name], []).append(LINE_PHASES[phase])
        rows = {row.function.split(".")[-1]: row for row in lines(trace).rows}
    assert found["aten.tanh.default"] == ["forward", "recompute"]
    assert found["aten.addmm.default"] == ["forward", "recompute", "forward"]
    assert found["aten.tanh_backward.default"] == ["backward"]
    assert found["aten.sigmoid.default"] == ["forward"] and found["aten.sigmoid_backward.default"] == [
        "backward"
    ]
    assert set(found["aten.mul_.Tensor"]) == {"optimizer"}, "the user's own optimizer"
    assert set(found["aten.zero_.default"]) == {"optimizer"} == set(found["aten.dot.default"])
    assert "optimizer" in found["aten.add_.Tensor"]
    # The checkpoint also detaches what it hands over.
    assert rows["block"].recompute_ns >= rows["block"].forward_ns > 0


GENERATED = "/tmp/torchinductor_me/ab/cxyz.py:20 Runner.call"
COMPILED = f"{APPLY} > {TORCH}/_functorch/_aot_autograd/runtime_wrappers.py:3 backward > {GENERATED}"


def test_backward_of_generated_code_has_the_lines_it_was_generated_from(tmp_path: Path) -> None:
    """One node stands for all of a compiled region; the generated code knows the line of each kernel."""
    builder = TraceBuilder().launch("x", 1, stack="/app/train.py:1 main", peek=0)
    region = f"/app/train.py:5 main > /app/model.py:10 Net.forward > {GENERATED}"
    for line, ns in ((11, 10), (12, 20)):
        builder.launch("forward", ns, stack=f"{region} > /app/model.py:{line} Net.forward", peek=1)
    for thread, around in ((2, ""), (1, f"{CALLS} > ")):
        for line, ns in ((12, 200), (11, 100)):
            origin = f"{around}{COMPILED} > /app/model.py:{line} Net.forward > {TORCH}/_inductor/run.py:3 run"
            builder.launch("backward", ns, stack=origin, thread=thread, **NODE)
    builder.launch("unknown origin", 7, stack=COMPILED, thread=2, **NODE)
    found, rows = phases(builder, tmp_path)
    assert found["backward"] == "backward"
    assert {line: (row.forward_ns, row.backward_ns) for line, row in rows.items() if line in (11, 12)} == {
        11: (10, 207),
        12: (20, 400),
    }, "without an origin the first forward launch of the region answers"
