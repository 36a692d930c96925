# SPDX-License-Identifier: Apache-2.0
"""Small things that the recorder looks up: kernel names, libcupti's place, the machine."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import pytest

from profiling_lab import _recorder
from profiling_lab.recording import gpu_facts, libcupti


@pytest.mark.parametrize(
    ("mangled", "demangled", "short"),
    [
        ("_ZN2at6native4fillIfEEvPT_i", "void at::native::fill<float>(float*, int)", "fill"),
        ("_Z3addPfS_", "add(float*, float*)", "add"),
        ("triton_poi_fused_sin_0", "triton_poi_fused_sin_0", "triton_poi_fused_sin_0"),
        ("_Znotmangled", "_Znotmangled", "_Znotmangled"),
        ("", "", ""),
    ],
)
def test_kernel_names(mangled: str, demangled: str, short: str) -> None:
    assert _recorder.demangle(mangled) == demangled
    assert _recorder.short_name(demangled) == short


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
         "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
         "vectorized_elementwise_kernel"),
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float, 7, false>(float*, int)",
         "softmax_warp_forward"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)", "Kernel2"),
        ("f<int>::g<(anonymous namespace)::T>::run(int (*)(float))", "run"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(Params)", "kernel"),
    ],
)  # fmt: skip
def test_short_names_of_real_kernels(demangled: str, short: str) -> None:
    assert _recorder.short_name(demangled) == short


def library(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"")
    return path


def test_toolkits_are_searched_after_conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conda = library(tmp_path / "conda" / "lib", "libcupti.so.13")
    toolkit = library(tmp_path / "cuda" / "extras" / "CUPTI" / "lib64", "libcupti.so.13")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(libcupti, "torch_cuda_major", lambda: None)
    found = libcupti.candidates()
    assert found.index(str(conda)) < found.index(str(toolkit))
    assert found[-2:] == ["libcupti.so.13", "libcupti.so.12"]


def test_only_the_major_version_that_torch_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = library(tmp_path / "lib64", "libcupti.so.12")
    right = library(tmp_path / "lib64", "libcupti.so.13")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(libcupti, "torch_cuda_major", lambda: 13)
    found = libcupti.candidates()
    assert str(right) in found and str(wrong) not in found and found[-1] == "libcupti.so.13"


def test_a_wheels_library_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = library(tmp_path / "nvidia" / "cu13" / "lib", "libcupti.so.13")
    info = tmp_path / "nvidia_cuda_cupti-13.0.48.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cuda-cupti\nVersion: 13.0.48\n")
    (info / "RECORD").write_text("nvidia/cu13/lib/libcupti.so.13,,\nnvidia/cu13/lib/libcheckpoint.so,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(libcupti, "torch_cuda_major", lambda: None)
    assert libcupti.candidates()[0] == str(wheel)


@pytest.mark.parametrize(
    ("version", "major"), [("2.11.0+cu130", 13), ("2.10.0+cu128", 12), ("2.13.0+cpu", None), ("2.12.0", None)]
)
def test_torchs_cuda_version_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, version: str, major: int | None
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert libcupti.torch_cuda_major() == major


def test_the_machine_is_described_without_saying_whose_it_is() -> None:
    facts = gpu_facts.system()
    assert int(facts["CpuCores"]) > 0 and facts["CpuArchitecture"] == platform.machine()
    assert platform.node() not in facts.values()
    assert set(facts) <= {"CpuCores", "CpuArchitecture", "OsDescription", "NvDriverVersion"}
