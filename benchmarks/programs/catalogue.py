# SPDX-License-Identifier: Apache-2.0
"""The public programs: where each comes from, how it is started, and what must be made for it first."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from profiling_lab.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Program:
    """An entry of catalogue.toml, which explains its fields."""

    name: str
    source: str
    commit: str
    licence: str
    folder: str
    run: str
    tiny: str = ""
    prepare: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    warm: bool = False
    """whether it is run once before anything counts: it fills a cache of compiled code"""

    @property
    def repository(self) -> str:
        return Path(self.folder).parts[0]

    def missing(self, programs: Path) -> str:
        """Why it cannot be run here; '' if it can."""
        script = programs / self.folder / shlex.split(self.run)[0]
        if not script.is_file():
            return f"there is no {script}"
        lacking = [name for name in self.needs if find_spec(name) is None and not _carried(programs, name)]
        return f"not installed: {', '.join(lacking)}" if lacking else ""

    def command(self, tiny: bool) -> list[str]:
        """Script and arguments."""
        return shlex.split(self.tiny if tiny else self.run)

    def environment(self, programs: Path, work: Path) -> dict[str, str]:
        """Of its processes: no network, no window, hashes that repeat, caches of its own."""
        here = work / self.repository
        own = {key: text.format(here=here, programs=programs.resolve()) for key, text in self.env.items()}
        paths = [own.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "MPLBACKEND": "Agg",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
            "TRITON_CACHE_DIR": str(work / "triton"),
            **own,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }

    def copy(self, programs: Path, work: Path) -> Path:
        """Its repository under `work`, as it writes to its own folder. Returns the folder it runs in."""
        shutil.copytree(programs / self.repository, work / self.repository, dirs_exist_ok=True)
        return work / self.folder

    def preparations(self) -> list[list[str]]:
        """The commands that make its data."""
        commands = []
        for line in self.prepare:
            first, *rest = shlex.split(line)
            script = [str(HERE / "prepare.py")] if first == "make" else [first]
            commands.append([sys.executable, *script, *rest])
        return commands


def _carried(programs: Path, module: str) -> bool:
    return (programs / "packages" / "site-packages" / module).exists()


def load(names: list[str], path: Path = HERE / "catalogue.toml") -> list[Program]:
    """The programs with these names, or all. Raises UsageError for a name that is not there."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["program"]
    lists = ("prepare", "needs")
    programs = [
        Program(**{key: tuple(value) if key in lists else value for key, value in entry.items()})
        for entry in entries
    ]
    known = {program.name for program in programs}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no program is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [program for program in programs if not names or program.name in names]
