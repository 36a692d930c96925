# SPDX-License-Identifier: Apache-2.0
"""Runs code in a process of its own, as a user's script would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import warm_torch

HERE = Path(__file__).resolve().parent


class Runner:
    """Runs Python code in a fresh process; in it, OUT is the path to record to."""

    def __init__(self, folder: Path, prelude: str, environment: dict[str, str]) -> None:
        import profiling_lab

        package = Path(profiling_lab.__file__).parents[1]
        self._folder = folder
        self._prelude = f"import os, sys, time, profiling_lab.errors, profiling_lab.recording; {prelude}; "
        self._prelude += f"OUT = {str(folder / 'out.sqlite')!r}\n"
        kept = {name: value for name, value in os.environ.items() if name != "NVTX_INJECTION64_PATH"}
        self._environment = {**kept, "PYTHONPATH": f"{package}{os.pathsep}{HERE}", **environment}

    def __call__(
        self,
        code: str,
        *,
        ok: bool = True,
        env: dict[str, str] | None = None,
        timeout: float = 600,
        under: tuple[str, ...] = (),
        warm: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """With `ok`, the code must end with status 0. `under`: a command line to run Python with. `warm`:
        torch is imported already (tests/warm_torch.py).
        """
        script = self._folder / "script.py"
        script.write_text(self._prelude + code.lstrip("\n"))
        environment = {**self._environment, **(env or {})}
        if warm:
            done = warm_torch.run([str(script)], self._folder, environment, timeout)
        else:
            done = subprocess.run(
                [*under, sys.executable, str(script)],
                capture_output=True,
                text=True,
                env=environment,
                cwd=self._folder,
                timeout=timeout,
            )
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done


def fake_runner(folder: Path, library: Path) -> Runner:
    """A Runner under the fake CUPTI, whose driver is `fake`."""
    prelude = "from fake_driver import *; fake = Fake()"
    return Runner(folder, prelude, {"PROFILING_LAB_CUPTI": str(library)})
