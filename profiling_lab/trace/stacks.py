# SPDX-License-Identifier: Apache-2.0
"""Python call stacks as a tree: every stack is a node, its parent is the stack of the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, U8
from profiling_lab.trace.ownership import INDUCTOR, Ownership

# The frames that call the autograd engine. On the thread that called backward() they are between the calling
# line and the code that the engine runs; the engine's own threads do not have them.
_ENGINE_FILES = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
_ENGINE_FUNCTIONS = ("_engine_run_backward", "_make_grads", "backward", "grad")
_CHECKPOINT = "torch/utils/checkpoint.py"
_FUNCTION = "torch/autograd/function.py"
# Python of a node itself: an autograd.Function, and a mode, which sees every operator.
_RUN_BY_A_NODE = ("backward", "__torch_dispatch__", "__torch_function__")
_OPTIMIZER = re.compile(r"(^|/)torch/(distributed/)?optim/")


@dataclass(frozen=True, slots=True, order=True)
class Frame:
    """One Python frame: the function, and the line that was executing."""

    function: str
    """the qualified name if the recorder knows it (3.11 and newer), else the plain name"""
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Stacks:
    """All stacks of a trace. Row 0 is the empty stack."""

    parent: I32
    """the caller's row; 0 above the outermost frame"""
    frame: I32
    """row of `frames`; 0 in row 0"""
    frames: tuple[Frame, ...]
    instances: tuple[str, ...] = ()
    """per frame the nn.Module whose `forward` it is, with its number (`Linear_3`), '' for none; () if
    instances were not recorded
    """

    def __len__(self) -> int:
        return len(self.parent)

    def of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first."""
        out = []
        while stack > 0:
            out.append(self.frames[self.frame[stack]])
            stack = int(self.parent[stack])
        return tuple(out)

    def instances_of(self, stack: int) -> tuple[str, ...]:
        """The instances of nn.Module of a stack, innermost first; () if not recorded."""
        out = []
        while stack > 0 and self.instances:
            if name := self.instances[self.frame[stack]]:
                out.append(name)
            stack = int(self.parent[stack])
        return tuple(out)

    def own_rows(self, ownership: Ownership) -> I32:
        """Per stack the row of its innermost frame in the user's own code, 0 if it has none."""
        main_string = bool(np.any((self.parent == 0) & self._is(self._string_modules())))
        own_frames = np.array([ownership.is_own(f.file, main_string) for f in self.frames], dtype=np.uint8)
        found = _analysis.nearest_marked(self._parents(), self._marks(own_frames))
        return np.maximum(found, 0)

    def passes_through(self, file_ends: tuple[str, ...], functions: tuple[str, ...] = ()) -> I32:
        """Per stack, the nearest row (including itself) whose frame is in such a file (and function),
        else 0.
        """
        return self.nearest(
            lambda f: f.file.endswith(file_ends) and (not functions or f.function.split(".")[-1] in functions)
        )

    def nearest(self, wanted: Callable[[Frame], bool]) -> I32:
        """Per stack the nearest row, including itself, whose frame is wanted, else 0."""
        hits = np.array([wanted(f) for f in self.frames], dtype=np.uint8)
        return np.maximum(_analysis.nearest_marked(self._parents(), self._marks(hits)), 0)

    def called_by_engine(self) -> npt.NDArray[np.bool_]:
        """Per stack, whether its innermost frame calls the autograd engine. Such a launch comes from the
        engine's C++ code, which prepares the first gradient or runs a node, and not from the caller.
        """
        rows = np.arange(len(self))
        return np.asarray((self._engine() == rows) & (rows > 0))

    def inside_engine(self, row: I32) -> npt.NDArray[np.bool_]:
        """Per stack, whether the frame at `row` (one of its rows, 0 for none) is inside the innermost call
        of the engine. Also true if the stack has no such call, as on the engine's own threads.
        """
        engine = self._engine()
        return np.asarray((row > 0) & (engine[row] == engine))

    def recomputes(self) -> npt.NDArray[np.bool_]:
        """Per stack, whether a launch in backward with it is recomputed forward (both kinds of activation
        checkpointing): its frames pass through the checkpoint, inside the engine.
        """
        return self.inside_engine(self.passes_through((_CHECKPOINT,)))

    def in_hook(self) -> npt.NDArray[np.bool_]:
        """Per stack, whether a launch in backward with it is that of a hook: a line of the user inside the
        engine, but not of an autograd.Function, whose backward belongs to its forward line, nor of a mode,
        which every operator of a node passes through.
        """
        own = self.own_rows(Ownership())
        node = self.nearest(
            lambda f: f.file.endswith(_FUNCTION) or f.function.split(".")[-1] in _RUN_BY_A_NODE
        )
        return np.asarray(self.inside_engine(own) & ~self.inside_engine(node))

    def tells_origin(self) -> npt.NDArray[np.bool_]:
        """Per stack, whether it has the program line from which the running code was generated
        (torch.compile), inside the engine. That is the forward line of this kernel.
        """
        own = self.own_rows(Ownership())
        generated = self.nearest(lambda f: bool(INDUCTOR.search(f.file)))[own]
        return np.asarray((own > 0) & self.inside_engine(generated))

    def optimizes(self) -> npt.NDArray[np.bool_]:
        """Per stack, whether an optimizer launches: torch.optim without a frame of the user below it, or
        the `step` of a custom optimizer and its callees. A closure passed to step is forward and
        backward like other code.
        """
        optimizer = self.nearest(lambda f: bool(_OPTIMIZER.search(f.file)))
        own = self.own_rows(Ownership())
        step = np.array([f.function.split(".")[-1] == "step" for f in self.frames], dtype=bool)[self.frame]
        # The user's own step is the first user frame below torch.optim, which wraps every step.
        is_first = (own == np.arange(len(self))) & (own[self.parent] == own[optimizer])
        own_step = (optimizer > 0) & is_first & step
        marks = ((optimizer == np.arange(len(self))) | own_step).astype(np.uint8)
        marks[0] = 0
        nearest = np.maximum(_analysis.nearest_marked(self._parents(), marks), 0)
        return np.asarray(((own == own[nearest]) | own_step[nearest]) & self.inside_engine(nearest))

    def _engine(self) -> I32:
        return self.passes_through(_ENGINE_FILES, _ENGINE_FUNCTIONS)

    def _parents(self) -> I32:
        parents = self.parent.copy()
        parents[parents == 0] = -1
        return parents

    def _marks(self, frames: U8) -> U8:
        marks = frames[self.frame] if len(frames) else np.zeros(len(self), dtype=np.uint8)
        marks[0] = 0
        return marks

    def _string_modules(self) -> U8:
        return np.array(
            [f.file == "<string>" and f.function == "<module>" for f in self.frames], dtype=np.uint8
        )

    def _is(self, frames: U8) -> np.ndarray:
        return self._marks(frames).astype(bool)


@dataclass(slots=True)
class StackBuilder:
    """Builds a stack tree from frames; equal stacks get the same row."""

    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    _frames: dict[Frame, int] = field(default_factory=dict)

    def add(self, innermost_first: Iterable[Frame]) -> int:
        """The row of this stack, 0 for an empty one."""
        row = 0
        for frame in reversed(tuple(innermost_first)):
            number = self._frames.setdefault(frame, len(self._frames))
            row = self._nodes.setdefault((row, number), len(self._nodes) + 1)
        return row

    def build(self) -> Stacks:
        pairs = np.array([(0, 0), *self._nodes], dtype=np.int32).reshape(-1, 2)
        return Stacks(pairs[:, 0].copy(), pairs[:, 1].copy(), tuple(self._frames) or (Frame("", "", 0),))


def no_stacks() -> Stacks:
    return StackBuilder().build()
