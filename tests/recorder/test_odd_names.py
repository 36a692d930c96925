# SPDX-License-Identifier: Apache-2.0
"""File names are bytes: a script, folder or recording may have one that is no text, or an odd one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from cli.script_runs import record, run, write
from package_root import PACKAGE_ROOT

ODD_NAMES = {
    "not UTF-8": b"tr\xe4in.py",
    "newline": b"two\nlines.py",
    "spaces and quotes": b' it\'s "mine" 100%?#.py',
    "dash": b"-o.py",
    "no suffix": b"train",
}
LAUNCHES = """
import os
import sqlite3
import sys
from fake_driver import Fake
def step(): Fake().kernel("a")
step()
print(ascii([sys.argv, sys.path[0], __file__]))
"""


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_scripts_and_folders_with_odd_names(name: bytes, tmp_path: Path, fake_library: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/fold\xe9r"))
    folder.mkdir()
    script = os.fsdecode(name)
    write(folder, LAUNCHES, script)
    arguments = [script, "\udce4", "x"]
    options = ["--"] if script.startswith("-") else []
    drivers = os.pathsep.join([str(PACKAGE_ROOT), str(Path(__file__).parent)])
    more = {"cupti": str(fake_library), "PYTHONPATH": drivers}
    alone = run(folder, *options, *arguments, **more)
    recorded = record(folder, *options, *arguments, **more)
    assert (recorded.out, recorded.code, recorded.err) == (alone.out, 0, alone.err), recorded.said
    output = folder / f"{Path(script).stem}.sqlite"
    assert sorted(path for path in folder.iterdir() if path.name != script) == [output]
    shown = name.decode(errors="backslashreplace")
    with sqlite3.connect(output) as file:
        texts = [value for (value,) in file.execute("SELECT value FROM StringIds")]  # all of it is UTF-8
        assert (shown,) in file.execute("SELECT value FROM PYREC_META WHERE name = 'script'").fetchall()
    assert f"{tmp_path}/fold\\xe9r/{shown}" in texts
    for form in (["lines"], ["info"], ["lines", "--format", "json"], ["report", "-o", "page.html"]):
        read = run(folder, "-m", "profiling_lab", form[0], f"./{output.name}", *form[1:])
        assert read.code == 0, (form, read.err, read.said)
    again = record(folder, "--overwrite", "-o", "missing/run.sqlite", *options, *arguments, **more)
    assert again.code == 2 and "does not exist" in again.err


def test_an_output_of_an_odd_name_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "print('ran')", "train.py")
    done = record(tmp_path, "-o", "n\udce4n/run.sqlite", "train.py")
    assert done.code == 2 and "does not exist" in done.err
