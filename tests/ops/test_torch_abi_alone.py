# SPDX-License-Identifier: Apache-2.0
"""csrc/torch_abi without torch: what its errors become, older libtorches, and what is given back when."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

_FAILED = "libtorch call failed: "
_WRONG_NUMBER = "a schema and its C++ function disagree on the number of arguments or results"
_DEFINED = "halved(float x, int times) -> float"
_PLAIN = "halved.plain(float x, int times) -> float"
EXPECTED = {
    "size 0": "3",
    "size 3": "4",
    "size 4": "dimension 4 of a tensor of shape [3, 2, 0, 4]",
    "size -1": "4",
    "size -4": "3",
    "size -5": "dimension -5 of a tensor of shape [3, 2, 0, 4]",
    "strides": "[8, 4, 4, 1]",
    "cpu": "cpu",
    "cuda": "cuda:3",
    "other device": "another kind of device",
    "other dtype": "another dtype",
    "no dtype": "no torch dtype stands behind this one",
    "same": "alike",
    "another dtype": "op: y has dtype float64 but x has dtype float32",
    "another GPU": "op: y is on cuda:2 but x is on cuda:0",
    "another device": "op: y is on cpu but x is on cuda:0",
    "float32 on a GPU": "0",
    "float64 on a GPU": "op: dtype float64 is not supported on CUDA; expected float32, bfloat16 or float16",
    "float32": "0",
    "float64": "1",
    "error without text": f"{_FAILED}aoti_torch_get_dim",
    "null text": f"{_FAILED}aoti_torch_get_dim",
    "empty text": f"{_FAILED}aoti_torch_get_dim",
    "text": "torch's own words",
    "memory with text": "torch's own words",
    "memory of a GPU": "CUDA out of memory: no float64 tensor of shape [5, 6] could be allocated on cuda:1",
    "memory": f"{_FAILED}aoti_torch_empty_strided",
    "string": "words",
    "string without characters": f"{_FAILED}torch_string_c_str",
    "string without length": f"{_FAILED}torch_string_c_str",
    "list": "[1][2][3]",
    "numbers": "[4, 5, 6]",
    "list without a size": f"{_FAILED}torch_list_get_item",
    "list without an item": f"{_FAILED}torch_list_get_item",
    "some": "8",
    "none": "none",
    "some since 2.13": "8 by libtorch",
    "none since 2.13": "none",
    "call 2 1": "5.000000",
    "call 1 1": _WRONG_NUMBER,
    "call 2 2": _WRONG_NUMBER,
    "loop 5 2": "[0, 5, 2] [0, 2][2, 4][4, 5]",
    "loop 5 0": "[0, 5, 1] [0, 1][1, 2][2, 3][3, 4][4, 5]",
    "loop 1 1": "[0, 1, 1] [0, 1]",
    "loop 0 3": " ",
    "loop -1 3": " ",
    "loop that throws": "piece 1",
    "registered": f"; ns CPU {_DEFINED} CPU:halved {_PLAIN} CPU:halved.plain ",
    "registered with cuda": (
        f"; ns CPU CUDA {_DEFINED} CPU:halved CUDA:halved {_PLAIN} CPU:halved.plain CUDA:halved.plain "
    ),
    "refused": (
        f"torch refused the ops of namespace ns: {_FAILED}torch_library_impl; "
        f"ns CPU {_DEFINED} CPU:halved {_PLAIN} without ns without CPU "
    ),
}


def test_over_a_libtorch_that_can_fail(tmp_path: Path) -> None:
    """The address sanitizer sees what is freed twice, or never."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    command = [
        compiler, "-std=c++20", "-O0", "-w", "-fsanitize=address", f"-I{REPO / 'csrc'}",
        str(REPO / "tests" / "ops" / "emulation" / "torch_abi.cpp"), "-o", str(tmp_path / "abi"), "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "abi"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    assert dict(line.split("\t") for line in done.stdout.splitlines()) == EXPECTED
