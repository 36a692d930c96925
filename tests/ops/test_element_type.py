# SPDX-License-Identifier: Apache-2.0
"""The 16-bit floats of csrc/ops/element_type.h against torch's own conversions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).resolve().parents[2]

SOURCE = """
#include "ops/element_type.h"
using namespace plab::ops;
template <class T> void narrow(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(in[i]).bits;
}
template <class T> void widen(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) { T value; value.bits = in[i]; out[i] = static_cast<float>(value); }
}
extern "C" {
void narrow_half(const float* in, uint16_t* out, int64_t n) { narrow<Half>(in, out, n); }
void widen_half(const uint16_t* in, float* out, int64_t n) { widen<Half>(in, out, n); }
void narrow_bfloat16(const float* in, uint16_t* out, int64_t n) { narrow<BFloat16>(in, out, n); }
void widen_bfloat16(const uint16_t* in, float* out, int64_t n) { widen<BFloat16>(in, out, n); }
}
"""


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("element_type")
    source, library = folder / "conversions.cpp", folder / "conversions.so"
    source.write_text(SOURCE)
    strict = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{REPO / 'csrc'}")
    subprocess.run([compiler, *strict, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def run(function: object, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    function(  # type: ignore[operator]
        ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr()), ctypes.c_int64(source.numel())
    )
    return target


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat16", torch.bfloat16)])
def test_every_16_bit_float_widens_exactly(conversions: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    ours = run(getattr(conversions, f"widen_{name}"), bits, torch.empty(1 << 16))
    theirs = bits.view(dtype).float()
    assert torch.equal(torch.isnan(ours), torch.isnan(theirs))
    keep = ~torch.isnan(theirs)
    assert torch.equal(ours[keep].view(torch.int32), theirs[keep].view(torch.int32))  # signed zeros too


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat16", torch.bfloat16)])
def test_narrowing_rounds_as_torch_does(conversions: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    """Every value, every midpoint, the floats next to both, and a sweep over all exponents."""
    values = torch.arange(0, 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    values = values[torch.isfinite(values)]
    middles = (values[:-1].double() + values[1:].double()).mul(0.5).float()
    points = torch.cat(
        [values, middles, torch.tensor([65504.0, 65519.996, 65520.0, 1e38, float("inf"), float("nan")])]
    )
    neighbours = [points.view(torch.int32) + step for step in (-1, 0, 1)]
    sweep = torch.arange(0, 0x7F800000, 1009, dtype=torch.int32)
    source = torch.cat([*(n.view(torch.float32) for n in neighbours), sweep.view(torch.float32)])
    source = torch.cat([source, -source])
    ours = run(getattr(conversions, f"narrow_{name}"), source, torch.empty(source.numel(), dtype=torch.int16))
    theirs = source.to(dtype)
    nan = torch.isnan(theirs)
    assert torch.equal(torch.isnan(ours.view(dtype)), nan)
    wrong = (ours != theirs.view(torch.int16)) & ~nan
    assert not wrong.any(), source[wrong][:5]
