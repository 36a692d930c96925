# SPDX-License-Identifier: Apache-2.0
"""What the compiled parts show to the process that loads them: their own few functions, nothing of libstdc++.

They share the process with libtorch. A weak or unique symbol (std::locale::id) of a libstdc++ inside of ours
that binds to another version's has crashed every recording where the compiler links it statically.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

EXPORTED = {
    "_analysis": {"PyInit__analysis"},
    "_ops": {"pl_build_info", "pl_init"},
    # NVTX looks the two up by name: the module is its injection library.
    "_recorder": {"InitializeInjectionNvtx2", "InitializeInjectionNvtxExtension", "PyInit__recorder"},
}


def exported(package: Path, part: str) -> set[str]:
    """Names that `nm -D` finds defined, with the kind of each that is no plain function."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm of binutils")
    (library,) = package.glob(f"{part}.*.so")
    listing = subprocess.run(
        [nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    symbols = (line.split() for line in listing.splitlines())
    return {name if kind == "T" else f"{kind} {name}" for _, kind, name in symbols}


@pytest.mark.parametrize("part", EXPORTED)
def test_only_what_others_look_up_is_exported(part: str) -> None:
    assert exported(PACKAGE_ROOT / "profiling_lab", part) == EXPORTED[part]
