# SPDX-License-Identifier: Apache-2.0
"""From a launch inside backward to the line of its forward operator, on CPU torch with fake launches.

Every torch operator launches one fake kernel of its own name. A kernel of the backward pass must carry the
number of the node that Python's `grad_fn` has, and the calls of the forward pass the number that leads there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

torch = pytest.importorskip("torch")

LAUNCHES = """
    SELECT k.value, l.peekSeq, l.nodeSeq, l.nodeFwdThread, l.selfThread, n.value, l.globalTid
    FROM PYREC_LAUNCH l
    JOIN CUPTI_ACTIVITY_KIND_KERNEL USING (correlationId) JOIN StringIds k ON k.id = shortName
    LEFT JOIN StringIds n ON n.id = l.nodeNameId ORDER BY l.correlationId"""

MODE = "import torch\n"


def test_a_backward_launch_knows_its_node(run_warm: Any, query: Any) -> None:
    done = run_warm(
        MODE
        + """
with profiling_lab.record(OUT) as recorder:
    with launch_per_operator(fake):
        a = torch.randn(4, 4, requires_grad=True)
        b = a @ a
        c = b.sin()
        d = c.sum()
        d.backward()
for t in (b, c, d): print(t.grad_fn.name(), t.grad_fn._sequence_nr())
assert "autograd" not in recorder.summary.reasons
"""
    )
    number = {name: int(n) for name, n in (line.split() for line in done.stdout.splitlines())}
    rows = query(LAUNCHES)
    forward = {name: peek for name, peek, node, *_ in rows if node is None}
    # The number that the next node would get is one more than that of the operator's own node.
    assert forward["mm"] - 1 == number["MmBackward0"]
    assert forward["sin"] - 1 == number["SinBackward0"]
    assert forward["sum"] - 1 == number["SumBackward0"]
    backward = {(name, node_name): node for name, _, node, _, _, node_name, _ in rows if node is not None}
    assert backward["cos", "SinBackward0"] == number["SinBackward0"]
    assert backward["mm", "MmBackward0"] == number["MmBackward0"]
    threads = {(fwd, own) for _, _, node, fwd, own, *_ in rows if node not in (None, -1)}
    assert len(threads) == 1 and len(set(next(iter(threads)))) == 1  # everything ran on one thread
    assert {node for _, _, node, _, _, name, _ in rows if name == "AccumulateGrad"} == {-1}


def test_backward_on_another_thread_points_to_the_forward_thread(run_warm: Any, query: Any) -> None:
    run_warm(
        MODE
        + """
import threading
def work():
    with launch_per_operator(fake): c.backward()
with profiling_lab.record(OUT):
    with launch_per_operator(fake):
        c = (torch.randn(4, requires_grad=True) * 2).sin().sum()
    thread = threading.Thread(target=work); thread.start(); thread.join()
"""
    )
    rows = query(LAUNCHES)
    forward = {(own, tid) for _, _, node, _, own, _, tid in rows if node is None}
    backward = {(fwd, own, tid) for _, _, node, fwd, own, _, tid in rows if node not in (None, -1)}
    main = next(iter({own for own, tid in forward}))
    assert len(backward) == 1
    fwd, own, tid = next(iter(backward))
    assert fwd == main and own != main and tid not in {t for o, t in forward if o == main}


def test_two_forward_threads_have_their_own_numbers(run_warm: Any, query: Any) -> None:
    run_warm(
        MODE
        + """
import threading
def work(n):
    with launch_per_operator(fake):
        x = torch.ones(2, requires_grad=True)
        for _ in range(n): x = x * 2
        outputs.append(x.sum())
outputs = []
with profiling_lab.record(OUT):
    for n in (3, 5):
        thread = threading.Thread(target=work, args=(n,)); thread.start(); thread.join()
    for y in outputs:
        with launch_per_operator(fake): y.backward()
"""
    )
    nodes: dict[int, set[int]] = {}
    for _, _, node, fwd, _, name, _ in query(LAUNCHES):
        if name == "MulBackward0":
            nodes.setdefault(fwd, set()).add(node)
    assert sorted(nodes.values(), key=len) == [{0, 1, 2}, {0, 1, 2, 3, 4}]


def test_launches_without_gradient_point_nowhere(run_warm: Any, query: Any) -> None:
    run_warm(
        MODE
        + """
with profiling_lab.record(OUT), launch_per_operator(fake), torch.no_grad():
    for _ in range(3): torch.ones(2).sin()
"""
    )
    rows = query(LAUNCHES)
    assert len({peek for _, peek, *_ in rows}) == 1 and all(node is None for _, _, node, *_ in rows)


def test_double_backward_and_custom_functions(run_warm: Any, query: Any) -> None:
    run_warm(
        MODE
        + """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 2
with profiling_lab.record(OUT), launch_per_operator(fake):
    x = torch.ones(2, requires_grad=True)
    y = Double.apply(x).sin().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.sum().backward()
"""
    )
    rows = query(LAUNCHES)
    made_in_backward = [r for r in rows if r[2] is not None and r[1] > rows[0][1]]
    assert made_in_backward
    assert {"SinBackward0", "DoubleBackward", "CosBackward0"} <= {r[5] for r in rows}


def test_checkpointing_runs_forward_inside_backward(run_warm: Any, query: Any, launch_lines: Any) -> None:
    run_warm(
        MODE
        + """
from torch.utils.checkpoint import checkpoint
def block(x):
    return x.sin().cos()
with profiling_lab.record(OUT), launch_per_operator(fake):
    x = torch.ones(2, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
"""
    )
    inside = [r for r in query(LAUNCHES) if r[0] == "sin" and r[2] is not None]
    assert inside, "the recomputed forward runs while a node is being evaluated"
    assert [f for _, _, f in launch_lines()].count("block") >= 4


def test_the_link_gives_every_reference_back(run_warm: Any) -> None:
    """A node that is never freed would keep the tensors of its step alive."""
    run_warm(
        MODE
        + """
import gc, weakref
with profiling_lab.record(OUT) as recorder, launch_per_operator(fake):
    saved = []
    for _ in range(50):
        x = torch.randn(100, 100, requires_grad=True)
        (x @ x).sin().sum().backward()
        saved.append(weakref.ref(x))  # the node of x @ x keeps it
        del x
    gc.collect()
assert recorder.summary.reasons == {}, recorder.summary
assert sum(ref() is not None for ref in saved) == 0
"""
    )


def test_memory_does_not_grow_with_backward_launches(run_warm: Any) -> None:
    run_warm(
        MODE
        + """
def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4096
def step():
    x = torch.randn(1000, 1000, requires_grad=True)  # 4 MB that a leaked node would hold
    (x * x).sum().backward()
with profiling_lab.record(OUT), launch_per_operator(fake):
    for _ in range(20): step()
    before = rss()
    for _ in range(60): step()
    grown = rss() - before
assert grown < 60 << 20, grown  # 240 MB if every node were kept
"""
    )


def test_torch_imported_during_the_recording(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import autograd_link
autograd_link.IMPORT_PATIENCE_S = -1
assert "torch" not in sys.modules
with profiling_lab.record(OUT) as recorder:
    import torch
    waiting = [f for f in sys.meta_path if "profiling_lab" in type(f).__module__]
    assert all(set(f.actions) <= {"torch._dynamo.callback"} for f in waiting)  # not torch
    assert "exec_module" not in vars(torch.__spec__.loader)
    with launch_per_operator(fake): torch.ones(2, requires_grad=True).sin().sum().backward()
assert recorder.summary.reasons == {}, recorder.summary
""")
    assert any(name == "SinBackward0" for *_, name, _ in query(LAUNCHES))


LATE_IMPORT = """
from profiling_lab.recording import autograd_link
autograd_link.IMPORT_PATIENCE_S = {patience}
assert "torch" not in sys.modules
def train():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x * 2
        @staticmethod
        def backward(ctx, g): return g * 2
    with launch_per_operator(fake): Double.apply(torch.ones(2, requires_grad=True)).sum().backward()
with profiling_lab.record(OUT) as recorder:
    import torch
    while profiling_lab._recorder.autograd_state() != "on": time.sleep(0.01)
    {wait}
    train()
assert recorder.summary.reasons == {{}}, recorder.summary
"""


def test_importing_torch_waits_for_nothing_that_waits_for_the_import(run: Any, query: Any) -> None:
    """A helper thread that needed the import's lock would never end, and with it this import."""
    run(LATE_IMPORT.format(patience=-1, wait=""))
    assert "DoubleBackward" in {name for *_, name, _ in query(LAUNCHES)}


def test_an_import_that_will_not_wait_is_linked_all_the_same(run: Any, query: Any) -> None:
    wait = "while sys._current_frames().keys() - {threading.get_ident()}: time.sleep(0.01)"
    run("import threading\n" + LATE_IMPORT.format(patience=0, wait=wait))
    assert "DoubleBackward" in {name for *_, name, _ in query(LAUNCHES)}


def test_a_recording_that_ends_before_its_link_is_made(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import autograd_link
autograd_link.IMPORT_PATIENCE_S = 0
autograd_link._make_nodes, real = lambda *_: go_on.acquire(), autograd_link._make_nodes
import threading; go_on = threading.Semaphore(0)
with profiling_lab.record(OUT) as recorder:
    import torch
    fake.kernel("a")
assert recorder.summary.launches == 1
assert "not examined before" in recorder.summary.reasons["autograd"], recorder.summary
go_on.release(); go_on.release()
autograd_link._make_nodes = real
with profiling_lab.record(OUT, overwrite=True) as recorder, launch_per_operator(fake):
    torch.ones(2, requires_grad=True).sin().sum().backward()
assert recorder.summary.reasons == {}, recorder.summary
""")


FAKE_TORCH = r"""
#include <stdint.h>
struct Returned { void* node; void* control; };
static uint64_t node[32];
struct Node { virtual ~Node(); };
Node::~Node() {}
extern void* table[] asm("_ZTV4Node");
extern "C" {
__attribute__((visibility("default"))) void* fake_class() { return table + 2; }
__attribute__((visibility("default"))) uint64_t* fake_node() { return node; }
uint64_t peek() asm("_ZN2at15sequence_number4peekEv");
__attribute__((visibility("default"))) uint64_t peek() { return 7; }
uint64_t thread() asm("_ZN2at14RecordFunction15currentThreadIdEv");
__attribute__((visibility("default"))) uint64_t thread() { return 5; }
void* current(Returned*) asm("_ZN5torch8autograd16get_current_nodeEv");
__attribute__((visibility("default"))) void* current(Returned* out) {
  out->node = node[0] ? node : nullptr;  // an intrusive_ptr: its one word, and one more reference
  if (node[0]) ++node[1];
  return out;
}
}
"""


@pytest.mark.parametrize(
    "counts, given_back",
    [
        (0x1_0000_0001, True),  # the engine's reference, and no Python object
        (1 << 63 | 0x1_0000_0002, True),  # the engine's, and a Python object's own
        (0x1_0000_0000, False),  # ours would be the last one
        (1 << 63 | 0x1_0000_0001, False),  # with ours the Python object's own: it would have to go, too
    ],
)
def test_a_reference_is_given_back_only_while_nothing_hangs_on_it(
    run: Any, tmp_path: Path, counts: int, given_back: bool
) -> None:
    source, library = tmp_path / "torch.cpp", tmp_path / "libtorch_cpu.so"
    source.write_text(FAKE_TORCH)
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    run(f"""
import ctypes
from profiling_lab import _recorder as r
library = ctypes.CDLL({str(library)!r})
library.fake_node.restype = ctypes.POINTER(ctypes.c_uint64)
node = library.fake_node()
assert r.attach_autograd() == ""
def sample(number, thread):  # a Python object's head, then a pointer to a node
    made = (ctypes.c_uint64 * 32)(9, 9, 9, number, thread)
    wrapper = (ctypes.c_uint64 * 8)(1, 1, ctypes.addressof(made))
    keep.append((made, wrapper))
    return ctypes.addressof(wrapper), number, thread
keep = []
assert r.calibrate([sample(n, t) for n, t in ((100, 1000), (101, 1000), (102, 2000), (103, 2000))]) == ""
library.fake_class.restype = ctypes.c_void_p
def launch(counts):
    node[1], node[3] = counts, 2**64 - 1
    fake.kernel("a")
    return node[1]
enough = 0x1_0000_0005
with profiling_lab.record(OUT, autograd=False) as recorder:
    node[0] = library.fake_class()
    assert launch(enough) == enough  # the place of the count is proven
    assert launch({counts}) == {counts} + (0 if {given_back} else 1)
    assert launch(enough) == enough  # and so it is afterwards, on or off
    node[0] = 0
state = r.autograd_state()
assert state == "on" if {given_back} else "in a way that is not known here" in state, state
""")


def test_a_torch_that_cannot_be_linked_is_still_imported(run: Any, tmp_path: Path) -> None:
    """A module that only looks like torch, without a single function of it."""
    run("""
open("torch.py", "w").write("__version__ = 'odd'; value = 3")
with profiling_lab.record(OUT) as recorder:
    import torch
    fake.kernel("a")
assert torch.value == 3 and recorder.summary.launches == 1
assert recorder.summary.reasons["autograd"] == "torch is not imported", recorder.summary
""")
    (tmp_path / "torch.py").unlink()
    run("""
import torch
real = torch.ones
def broken(*args, **kwargs): raise RuntimeError("no")
torch.ones = broken
with profiling_lab.record(OUT, overwrite=True) as recorder: fake.kernel("a")
torch.ones = real
assert "could not be made" in recorder.summary.reasons["autograd"], recorder.summary
""")


def test_without_torch_the_reason_is_given_and_nothing_is_left_behind(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder: fake.kernel("a")
assert recorder.summary.reasons["autograd"] == "torch is not imported"
assert not any("profiling_lab" in type(f).__module__ for f in sys.meta_path)
""")
    assert query("SELECT peekSeq, nodeSeq, selfThread FROM PYREC_LAUNCH") == [(None, None, None)]
    assert ("autograd_link", "torch is not imported") in query("SELECT name, value FROM PYREC_META")


def test_calibration_does_not_disturb_the_program(run_warm: Any) -> None:
    run_warm(
        MODE
        + """
def numbers(): return [(torch.ones(1, requires_grad=True) * 2).grad_fn._sequence_nr() for _ in range(3)]
first = numbers(); state = torch.get_rng_state()
with profiling_lab.record(OUT): pass
assert numbers() == [n + 3 for n in first]  # this thread's numbering went on as if nothing had happened
assert torch.equal(state, torch.get_rng_state())
"""
    )


def test_a_fork_after_recording_can_still_use_autograd(run_warm: Any) -> None:
    """torch's engine refuses to run in a child if its threads were started before the fork."""
    run_warm(
        MODE
        + """
with profiling_lab.record(OUT): pass
pid = os.fork()
if pid == 0:
    torch.ones(2, requires_grad=True).sin().sum().backward()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    )


def test_calibration_refuses_what_it_cannot_prove() -> None:
    code = """
import torch, threading
from profiling_lab import _recorder as r
assert r.attach_autograd() == ""
nodes = []
def make():
    values = [torch.ones(1, requires_grad=True) * 2 for _ in range(len(nodes) + 2)]
    nodes.extend((v.grad_fn, v.grad_fn._sequence_nr(), r.logical_thread()) for v in values[-2:])
for _ in range(2):
    thread = threading.Thread(target=make); thread.start(); thread.join()
true = [(id(node), number, thread) for node, number, thread in nodes]
few = "four autograd nodes with different numbers, of two threads"
assert few in r.calibrate([]) and few in r.calibrate(true[:3]) and few in r.calibrate(true[:1] * 4)
assert "could not find" in r.calibrate([(o, n + 1, t) for o, n, t in true])
assert "could not find" in r.calibrate([(o, n, t + 7) for o, n, t in true])
assert "could not find" in r.calibrate([(8, n, t) for o, n, t in true])  # not even memory
assert "could not find" in r.calibrate([(id(make), n, t) for o, n, t in true])  # no node
assert r.autograd_state() != "on"
assert r.calibrate(true) == "" and r.autograd_state() == "on"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE_ROOT)
