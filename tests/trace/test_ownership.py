# SPDX-License-Identifier: Apache-2.0
"""Which frames are the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame, StackBuilder


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/tmp/ipykernel_31/2345.py", True),
        ("<ipython-input-3-0fd2>", True),
        ("<stdin>", True),
        ("/venv/lib/python3.12/site-packages/transformers/models/llama.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.12/threading.py", False),
        ("/root/.pyenv/versions/3.11.7/lib/python3.11/runpy.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("<built-in>", False),
        ("<eval_with_key>.42", False),
        ("", False),
        ("/src/pytorch/torch/nn/modules/linear.py", False),
        ("/src/pytorch/torch/functional.py", False),
        ("/home/me/torch/train.py", True),
        ("torch/nn/modules/linear.py", False),
        ("torch/_ops.py", False),
        ("torch/train.py", True),
        ("transformers/models/llama/modeling_llama.py", False),
        ("threading.py", False),
        ("/home/me/threading.py", True),
        ("models/copy.py", True),
        ("/tmp/torchinductor_me/ab/cabc.py", False),
        ("/cache/ko/ckogjf4nxkweiz4pov6j63l2rsnmhdof5oizq54hz6q7wtdy3wqo.py", False),
        ("/home/me/ko/classifier.py", True),
        ("/usr/local/bin/torchrun", False),
        ("/home/me/bin/train.py", True),
        ("/src/profiling_lab/ops/heavy_layer.py", False),
        ("/src/profiling_lab/models/transformer.py", True),
        ("/venv/lib/python3.12/site-packages/profiling_lab/exercises/e17_python_backtrace/model.py", True),
    ],
)
def test_default(file: str, own: bool) -> None:
    assert Ownership().is_own(file) is own


def test_a_program_given_as_a_string_is_the_users() -> None:
    builder = StackBuilder()
    program = builder.add([Frame("step", "<string>", 3), Frame("<module>", "<string>", 9)])
    stacks = builder.build()
    assert stacks.own_rows(Ownership())[program] == program

    builder = StackBuilder()
    generated = builder.add([Frame("__init__", "<string>", 3), Frame("main", "/app/a.py", 9)])
    stacks = builder.build()
    own = stacks.own_rows(Ownership())[generated]
    assert stacks.frames[stacks.frame[own]].function == "main", "what dataclasses compile is not"


@pytest.mark.parametrize(
    ("path", "file", "own"),
    [
        ("/app/model", "/app/model/net.py", True),
        ("/app/model", "/app/model.py", False),
        ("/app/model.py", "/app/model.py", True),
        ("model.py", "/elsewhere/model.py", True),
        ("odel.py", "/elsewhere/model.py", False),
        ("src/model", "/app/src/model/net.py", True),
        ("./src", "/app/src/net.py", True),
        ("transformers", "/v/site-packages/transformers/llama.py", True),
        ("/app", "/home/me/train.py", False),
    ],
)
def test_paths_replace_the_default(path: str, file: str, own: bool) -> None:
    assert Ownership((path,)).is_own(file) is own


def test_here_means_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Ownership((".",)).is_own(str(tmp_path / "a.py"))
    assert not Ownership((".",)).is_own("/elsewhere/a.py")


def test_rows_of_own_frames_are_the_innermost_ones() -> None:
    builder = StackBuilder()
    library = Frame("mm", "/v/site-packages/torch/x.py", 1)
    full = builder.add([library, Frame("f", "a.py", 2), library, Frame("main", "t.py", 1)])
    only_library = builder.add([library])
    stacks = builder.build()
    own = stacks.own_rows(Ownership())
    assert stacks.of(own[full])[0] == Frame("f", "a.py", 2)
    assert own[only_library] == 0 and own[0] == 0
    assert builder.add([library]) == only_library, "equal stacks are one"
