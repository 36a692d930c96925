# SPDX-License-Identifier: Apache-2.0
"""Damages traces of torch.profiler in every way it can think of and asks everything about them.

python tests/fuzz_chrome.py --seconds 600

An answer is a table or a LabError of one sentence; anything else is written down and fails. tests/trace/
test_chrome_fuzz.py runs a few hundred of the same cases.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import gzip
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from damage import WILD

from profiling_lab import _analysis
from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.info import info
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.memory.memory import memory
from profiling_lab.analysis.memory.peaks import memory_peaks
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.steps import steps
from profiling_lab.analysis.syncs import syncs
from profiling_lab.errors import LabError
from profiling_lab.trace import Trace
from profiling_lab.trace.kineto.flows import flow_agreement
from profiling_lab.trace.kineto.source import ChromeSource

HANG_SECONDS = 60
TABLES = ("operations", "calls", "operators", "python", "syncs", "overheads", "flows", "memory")
PID, MAIN, ENGINE = 11, 11, 12
MEMORY = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Reserved": 1 << 21, "Addr": 4096}
MEMORY |= {"Total Allocated": 512}
EVALUATES = "autograd::engine::evaluate_function"

Document = dict[str, Any]
Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, tid: int = MAIN, pid: int = PID, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def arrow(phase: str, number: int, tid: int, ts: float) -> Event:
    """One end of an arrow from a forward operator to its backward."""
    return {"ph": phase, "id": number, "pid": PID, "tid": tid, "ts": ts, "cat": "fwdbwd", "name": "fwdbwd"}


def document() -> Document:
    """Three steps with everything that torch.profiler can write."""
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": PID, "args": {"name": "python"}}]
    for step in range(3):
        t, n = 1000.0 * step + 0.125, 10 * step
        python = [
            ("train.py(20): main", 0, 700, None),
            ("nn.Module: Net_0", 5, 300, 1),
            ("torch/nn/modules/module.py(1780): _call_impl", 6, 298, 2),
            ("model.py(7): forward", 8, 290, 3),
            (f"<built-in method linear of object at 0x7f{step}a0>", 9, 200, 4),
        ]
        for i, (name, at, dur, parent) in enumerate(python, 1):
            above = None if parent is None else n + parent
            ids = {"Python id": n + i, "Python parent id": above, "Ev Idx": i}
            events.append(event("python_function", name, t + at, dur, **ids))
        events += [
            event("user_annotation", f"ProfilerStep#{step}", t, 900),
            event("cpu_op", "aten::linear", t + 10, 90, **{"Sequence number": n, "Fwd thread id": 0}),
            event("cpu_op", "aten::mm", t + 12, 80, **{"Sequence number": n, "Input Dims": [[2, 3], [3]]}),
            event("cuda_runtime", "cudaLaunchKernel", t + 15, 5, correlation=n + 1, cbid=211),
            event("kernel", 'gemm<"a\\b">', t + 30, 50.5, 7, 0, correlation=n + 1, device=0, stream=7),
            event("overhead", "Lazy Function Loading", t + 16, 2, tid=0, pid=-1),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", t + 81, 8, 7, 0, correlation=n + 2),
            event("gpu_memset", "Memset (Device)", t + 90, 1, 7, 0, correlation=n + 3, bytes=9),
            event("cpu_op", f"{EVALUATES}: Mm", t + 400, 90, ENGINE, **{"Sequence number": n}),
            event("cpu_op", "Mm", t + 405, 80, ENGINE, **{"Sequence number": n, "Fwd thread id": 1}),
            event("cuda_driver", "cuLaunchKernelEx", t + 412, 4, ENGINE, correlation=n + 4),
            event("kernel", "gemm_t", t + 420, 20, 7, 0, correlation=n + 4, grid=[1, 2, 3], block=[32, 1, 1]),
            event("cuda_sync", "Stream Sync", t + 441, 9, 7, cuda_sync_kind="Stream Sync", correlation=n + 5),
            event(
                "kernel", "ncclDevKernel_AllReduce", t + 460, 30, 9, 0, correlation=n + 6, stream=9,
                **{"Collective name": "allreduce", "In msg nelems": 9, "dtype": "Float", "Group size": 2},
            ),
            arrow("s", n, MAIN, t + 12),
            arrow("f", n, ENGINE, t + 405),
            {"ph": "i", "name": "[memory]", "pid": PID, "tid": MAIN, "ts": t, "args": dict(MEMORY)},
        ]  # fmt: skip
    events.append({"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9.3e15, "s": "g"})
    device = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9, "totalGlobalMem": 1 << 37}
    return {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "baseTimeNanoseconds": 1_700_000_000 * 10**9,
        "traceEvents": events,
        "traceName": "t.json",
    }


def of_2021(new: Document) -> Document:
    """The same in the words of torch 1.9."""
    words = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "cuda_driver": "Runtime", "kernel": "Kernel"}
    words |= {"gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}
    old = copy.deepcopy(new)
    old["traceEvents"] = [e for e in old["traceEvents"] if e.get("cat") != "python_function"]
    for e in old["traceEvents"]:
        e["cat"] = words.get(e.get("cat", ""), "Trace")
        e["tid"] = f"stream {e['tid']}" if e["cat"] in ("Kernel", "Memcpy", "Memset") else str(e.get("tid"))
        if e["cat"] == "Operator" and e["tid"] == str(MAIN):
            e["args"]["Call stack"] = (
                "torch/nn/functional.py(9): linear;model.py(8): forward;train.py(22): main"
            )
    del old["baseTimeNanoseconds"]
    return old


ODD: tuple[Any, ...] = (
    *(value for value in WILD if not isinstance(value, bytes)), True, -(2**31) - 1, 2**53 + 1, 2**64, 10**30,
    0.5, -0.0, 1e-9, 1e18, 1e308, float("nan"), float("inf"), -float("inf"), "", "7", "-7", "1.5", "1e3",
    "N/A", "X", "kernel", "x" * 5000, "\ud800", "\x00\x1f", "π\U0001f600", [], [[[1]]], {},
    {"a": {"b": [1, {"c": "}"}]}},
)  # fmt: skip
BITS = (
    b"N/A", b"NaN", b"-Infinity", b"nan", b'"', b"\\", b"\\u", b"\\ud83d", b"{", b"}", b"[", b"]", b",", b":",
    b"\x00", b"\x0a", b"\xff", b"\xc3", b"\xe2\x82", b"9" * 40, b"-", b"1e999", b"[" * 40, b"{" * 40,
    b'{"a":' * 40,
    b'{"ph":"X"', b',{"ph":[', b'"traceEvents":[', b"]}", b"]}]}", b"\xef\xbb\xbf", b"/*", b"null", b"tru",
)  # fmt: skip


def damage_values(dice: random.Random, doc: Document) -> None:
    """Values of a wrong kind or size, members that are missing or twice as many, callers in circles."""
    events = doc["traceEvents"]
    for _ in range(dice.choice((1, 3, 20))):
        victim = dice.choice(events)
        what = dice.randrange(9)
        if what == 0 and isinstance(victim.get("args"), dict) and victim["args"]:
            victim["args"][dice.choice(list(victim["args"]))] = dice.choice(ODD)
        elif what == 1:
            victim[dice.choice(list(victim))] = dice.choice(ODD)
        elif what == 2:
            victim.pop(dice.choice(list(victim)))
            victim.setdefault("ph", "X")
        elif what == 3:
            events.append(copy.deepcopy(victim))
        elif what == 4:
            victim["ts"] = dice.choice((dice.uniform(-4000, 4000), 1e15, -1e15, 9.2e18))
        elif what == 5:
            victim["dur"] = dice.choice((0, -1, 1e12, dice.uniform(0, 5000)))
        elif what == 6:
            victim["tid"], victim["pid"] = dice.choice(ODD), dice.choice((PID, PID + 1, -5, 1 << 40))
        elif what == 7 and isinstance(victim.get("args"), dict):
            victim["args"]["Python parent id"] = dice.randrange(40)
            victim["args"]["Python id"] = dice.randrange(40)
        elif what == 8 and isinstance(victim.get("args"), dict):
            victim["args"]["correlation"] = dice.randrange(30)
    if dice.random() < 0.3:
        dice.shuffle(events)
    if dice.random() < 0.3:
        doc[dice.choice(("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "traceEvents"))] = (
            dice.choice(ODD)
        )


def text_of(dice: random.Random, doc: Document) -> bytes:
    """One of the ways to write it."""
    if dice.random() < 0.2 and isinstance(doc["traceEvents"], list):
        return json.dumps(doc["traceEvents"]).encode()
    keys = list(doc)
    if dice.random() < 0.5:
        dice.shuffle(keys)
    indent = dice.choice((None, None, 2))
    ascii_only = dice.random() < 0.5
    text = json.dumps({key: doc[key] for key in keys}, indent=indent, ensure_ascii=ascii_only)
    return text.encode(errors="surrogatepass")


def damage_bytes(dice: random.Random, text: bytes) -> bytes:
    content = bytearray(text)
    for _ in range(dice.choice((1, 1, 2, 5, 30))):
        if not content:
            break
        at = dice.randrange(len(content))
        to = min(len(content), at + dice.choice((1, 1, 2, 10, 300, 5000)))
        what = dice.randrange(7)
        if what == 0:
            content[at] = dice.randrange(256)
        elif what == 1:
            del content[at:to]
        elif what == 2:
            content[at:at] = content[at:to]
        elif what == 3:
            content[at:at] = dice.choice(BITS) * dice.choice((1, 1, 3))
        elif what == 4:
            content[at:to] = bytes(dice.randrange(256) for _ in range(min(to - at, 64)))
        elif what == 5:
            content = content[:at] if dice.random() < 0.5 else content[at:]
        else:
            other = dice.randrange(len(content))
            content[at:to], content[other : other + 1] = content[other : other + to - at], content[at:to]
    return bytes(content)


def case(seed: int) -> bytes:
    """The file of this seed."""
    dice = random.Random(seed)
    doc = document()
    if dice.random() < 0.3:
        doc = of_2021(doc)
    if dice.random() < 0.6:
        damage_values(dice, doc)
    text = text_of(dice, doc)
    if dice.random() < 0.7:
        text = damage_bytes(dice, text)
    if dice.random() < 0.2:
        text = gzip.compress(text, 1)
        if dice.random() < 0.7:
            text = damage_bytes(dice, text)
    return text


def read_in_pieces(text: bytes, sizes: Callable[[], int]) -> tuple[Any, ...]:
    """All that the reader says, fed with pieces of these sizes."""
    reader = _analysis.ChromeReader()
    at = 0
    while at < len(text):
        size = sizes()
        reader.feed(text[at : at + size])
        at += size
    reader.finish()
    tables = {name: reader.take_table(name) for name in TABLES}
    return tables, reader.texts(), reader.threads(), reader.root(), reader.damage(), reader.found_events


def same_in_any_pieces(text: bytes, seed: int) -> None:
    dice = random.Random(seed)
    most = dice.choice((1, 7, 100, 3000))
    whole = read_in_pieces(text, lambda: max(len(text), 1))
    pieces = read_in_pieces(text, lambda: dice.randint(1, most))
    for name in TABLES:
        for column, values in whole[0][name].items():
            assert np.array_equal(values, pieces[0][name][column]), f"{name}.{column} depends on the pieces"
    assert repr(whole[1:]) == repr(pieces[1:]), "what is said depends on the pieces"


def ask(path: Path) -> str:
    """Everything that a user can ask; the name of the outcome."""
    questions: tuple[Callable[[Trace], object], ...] = (
        info, lines, lambda trace: lines(trace, by="kernel"), lambda trace: lines(trace, by="module"),
        top_kernels, steps, gaps, overlap, syncs, lambda trace: trace.overheads,
    )  # fmt: skip
    try:
        trace = Trace.open(path)
    except LabError as error:
        assert "\n" not in str(error) and error.exit_code == 4, error
        return "unreadable"
    answered = 0
    with trace:
        for question in questions:
            try:
                question(trace)
                answered += 1
            except LabError as error:
                assert "\n" not in str(error), error
        source = trace.source
        assert isinstance(source, ChromeSource)
        agreement = flow_agreement(source.events)
        assert 0 <= agreement.agree <= agreement.arrows
        assert (
            len(list(source.noted_collectives())) == len(source.noted_collectives()) <= len(trace.operations)
        )
        memory_peaks(trace)
        if trace.source.memory_history():
            memory(trace)
        assert trace.launch_shapes is None or len(trace.launch_shapes.number) == len(trace.operations)
        assert trace.input_shapes is None or len(trace.input_shapes.number) == len(trace.ranges)
        assert len(source.syncs(trace)) == len(source.events["syncs"]["thread"])
        assert all(count > 0 for count in trace.repairs.values()), trace.repairs
    return "read and repaired" if trace.repairs else "read" if answered else "nothing to answer"


def run(seeds: range, seconds: float, folder: Path) -> tuple[Counter[str], list[int]]:
    """Outcomes by name, and the seeds that failed."""
    outcomes: Counter[str] = Counter()
    failed = []
    path = folder / "t.json"
    began = time.monotonic()
    for seed in seeds:
        if time.monotonic() - began > seconds:
            break
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        text = case(seed)
        path.write_bytes(text)
        try:
            if not text.startswith(b"\x1f\x8b"):
                same_in_any_pieces(text, seed)
            outcomes[ask(path)] += 1
        except Exception:
            print(f"seed {seed}:", file=sys.stderr)
            traceback.print_exc()
            failed.append(seed)
        faulthandler.cancel_dump_traceback_later()
    return outcomes, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10**9)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(wanted.first, wanted.first + wanted.count)
        outcomes, failed = run(seeds, wanted.seconds, Path(folder))
    print(f"{sum(outcomes.values()):,} cases: {dict(outcomes.most_common())}; failed seeds: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
