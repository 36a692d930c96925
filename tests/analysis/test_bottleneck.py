# SPDX-License-Identifier: Apache-2.0
"""Which layer is called the bottleneck, when none is, and how kernels are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.source_names import qualified
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.report import bottleneck
from profiling_lab.report.bottleneck import Bottleneck
from profiling_lab.trace import Trace


def found(path: Path, builder: TraceBuilder) -> Bottleneck:
    with Trace.open(builder.write(path / "run.sqlite")) as trace:
        return bottleneck.find(trace)


def shares(path: Path, **microseconds: int) -> Bottleneck:
    """Layers of one kernel each, with those times; `unattributed` has no Python stack."""
    builder = TraceBuilder()
    for line, (layer, us) in enumerate(microseconds.items(), 10):
        stack = "" if layer == "unattributed" else f"net.py:{line} {layer}.forward"
        builder.launch(f"kernel_{layer}", us * 1000, stack=stack)
    return found(path, builder)


def test_a_third_of_the_time_and_a_clear_lead_make_a_bottleneck(tmp_path: Path) -> None:
    result = shares(tmp_path, Attention=45, Mlp=30, Head=25)
    assert (
        bottleneck.conclusion(result) == "Attention is the bottleneck: 45.0 % of GPU time, at net.py line 10."
    )


@pytest.mark.parametrize(
    "microseconds",
    [
        pytest.param({"A": 30, "B": 20, "C": 20, "D": 30}, id="no-lead"),
        pytest.param({"A": 32, "B": 17, "C": 17, "D": 17, "E": 17}, id="under-a-third"),
    ],
)
def test_without_either_nothing_stands_out(tmp_path: Path, microseconds: dict[str, int]) -> None:
    assert bottleneck.conclusion(shares(tmp_path, **microseconds)).startswith(
        "no layer stands out. A costs most"
    )


def test_too_little_known_allows_no_conclusion(tmp_path: Path) -> None:
    result = shares(tmp_path, A=25, B=5, unattributed=70)
    assert bottleneck.conclusion(result).startswith("none. Only 30.0 % of the GPU time has a Python line")


def test_a_large_known_part_is_named_with_what_is_unknown(tmp_path: Path) -> None:
    text = bottleneck.conclusion(shares(tmp_path, A=44, B=5, unattributed=51))
    assert text.startswith("A is the bottleneck: 44.0 %")
    assert text.endswith("(But 51.0 % of the GPU time has no Python line.)")


def test_many_short_kernels_are_added_up_and_the_longest_one_is_no_answer(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 40_000, stack="net.py:5 Mlp.forward")
    for number in range(60):
        builder.launch(f"tiny_{number % 3}", 1_000, stack="net.py:9 Loop.forward")
    text = bottleneck.conclusion(found(tmp_path, builder))
    assert text.startswith("Loop is the bottleneck: 60.0 %")
    assert "No single kernel shows it: gemm" in text and "belongs to Mlp; the 60 kernels of Loop" in text


def test_lines_of_a_layer_are_summed_and_its_hottest_line_is_named(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("a", 10_000, stack="net.py:5 Net.forward").launch(
        "b", 30_000, stack="net.py:7 Net.forward"
    )
    builder.launch("c", 35_000, stack="net.py:20 loss")
    first = found(tmp_path, builder).layers[0]
    assert (first.name, first.line, first.gpu_ns, first.kernels) == ("Net", 7, 40_000, 2)


def test_same_class_name_in_two_files_is_two_layers(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("a", 10_000, stack="one.py:5 Net.forward").launch(
        "b", 10_000, stack="two.py:5 Net.forward"
    )
    assert [layer.file for layer in found(tmp_path, builder).layers] == ["one.py", "two.py"]


def test_no_line_at_all_is_not_enough(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 1000, stack="/x/site-packages/lib/a.py:1 f")
    with pytest.raises(NotEnoughDataError, match="leads to a line of your own code"):
        found(tmp_path, builder)


@pytest.mark.parametrize(
    ("function", "layer"),
    [
        ("HeavyLayer.forward", "HeavyLayer"),
        ("attention_layer", "attention_layer"),
        ("Outer.Inner.forward", "Outer.Inner"),
        ("main.<locals>.step", "main.<locals>.step"),
        ("<module>", "<module>"),
    ],
)
def test_layer_names(function: str, layer: str) -> None:
    assert bottleneck.layer_name(function) == layer


def test_tree_shows_the_hottest_line_and_counts_the_others(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("gemm", 3_000, stack="train.py:8 main > net.py:5 Net.forward")
    builder.launch("gemm", 1_000, stack="train.py:9 main > net.py:6 Net.forward")
    assert bottleneck.kernel_tree(found(tmp_path, builder)) == [
        "1. gemm (100.0 % of GPU time; 2 launches, 2.000 µs each)",
        "   └── Python: net.py:Net.forward() line 5",
        "       └── Python: train.py:main() line 8",
        "   (and 1 other place with 25.0 % of this kernel's time)",
    ]


def test_bare_names_get_their_class_from_the_source(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text(
        "class A:\n    def forward(self):\n        return 1\n"
        "class B:\n    def forward(self):\n        def inner():\n            return 2\n"
        "        return inner()\n"
    )
    assert qualified("forward", str(source), 3) == "A.forward"
    assert qualified("forward", str(source), 8) == "B.forward"
    assert qualified("inner", str(source), 7) == "B.forward.<locals>.inner"
    assert qualified("forward", "/elsewhere/net.py", 3, tmp_path) == "A.forward"
    assert qualified("forward", "/elsewhere/net.py", 3) == "forward", "no source, no guess"
    assert qualified("backward", str(source), 3) == "backward", "the source disagrees"
    assert qualified("C.forward", str(source), 3) == "C.forward", "known already"
