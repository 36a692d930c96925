# SPDX-License-Identifier: Apache-2.0
"""What `lines` says where one line has nearly all of the time, or nothing has a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.lines import lines
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace import Trace

PACKAGES = "/usr/lib/python3.12/site-packages"
MODEL = f"{PACKAGES}/transformers/models/qwen.py:90 Attention.forward"
CALL = f"{PACKAGES}/torch/nn/modules/module.py:1739 Module._wrapped_call_impl"
INNER = f"{PACKAGES}/torch/nn/modules/linear.py:125 Linear.forward"
OWN = "/app/serve.py:8 main"


def notes(builder: TraceBuilder, folder: Path, own: tuple[str, ...] = ()) -> list[str]:
    path = folder / "run.sqlite"
    path.unlink(missing_ok=True)
    with Trace.open(builder.write(path)) as trace:
        return [note for note in lines(trace, own=own).coverage.notes if "nearly all" in note]


@pytest.mark.parametrize("with_range", [False, True])
def test_the_library_and_the_layers_are_named(tmp_path: Path, with_range: bool) -> None:
    builder = TraceBuilder().launch("gemm", 90_000, stack=f"{OWN} > {CALL} > {MODEL} > {CALL} > {INNER}")
    builder.launch("copy", 9_000, stack="/app/serve.py:9 main")
    if with_range:
        builder.range("prefill", 900_000, 1_200_000)
    (note,) = notes(builder, tmp_path)
    assert note.endswith("inside of it: --own transformers, --by layer" + ", --by range" * with_range)


def test_a_line_without_library_or_layers_has_its_kernels(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 90_000, stack=f"{OWN} > {PACKAGES}/torch/functional.py:3 einsum")
    (note,) = notes(builder, tmp_path)
    assert note.endswith("to look inside of it: --by kernel"), "torch itself is no answer"


def test_silent_where_lines_share_the_time(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 70_000, stack=f"{OWN} > {MODEL}")
    assert notes(builder.launch("copy", 30_000, stack="/app/serve.py:9 main"), tmp_path) == []


@pytest.mark.parametrize(("own", "says"), [((), 1), (("transformers",), 0)])
def test_silent_once_the_library_counts_as_own(tmp_path: Path, own: tuple[str, ...], says: int) -> None:
    builder = TraceBuilder().launch("gemm", 50_000, stack=f"{OWN} > {MODEL}")
    builder.launch("softmax", 45_000, stack=f"{OWN} > {MODEL.replace(':90', ':95')}")
    assert len(notes(builder, tmp_path, own)) == says


@pytest.mark.parametrize(
    ("with_range", "says"),
    [(False, "; --by kernel needs none"), (True, "; --by range and --by kernel need none")],
)
def test_without_any_stack_it_says_what_needs_none(tmp_path: Path, with_range: bool, says: str) -> None:
    builder = TraceBuilder("nsys").launch("gemm", 90_000)
    if with_range:
        builder.range("step", 900_000, 1_200_000)
    path = builder.write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="no Python stacks") as raised:
        lines(trace)
    assert str(raised.value).endswith(says)
