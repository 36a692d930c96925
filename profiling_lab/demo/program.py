# SPDX-License-Identifier: Apache-2.0
"""The program that the demo records: the starter files of exercise E17.

The demo runs a copy of them, so that its frames are user files and not part of an installed package.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "exercises" / "e17_python_backtrace"
FILES = ("model.py", "train_model.py")


def copy_program(target: Path) -> None:
    for name in FILES:
        shutil.copyfile(FOLDER / name, target / name)
