# SPDX-License-Identifier: Apache-2.0
"""tools/record_counters.py with a stand-in for ncu: it refuses a metric, and then gives a real table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import REPO

NCU = """#!/bin/sh
log=; last=
for word; do [ "$last" = --log-file ] && log=$word; last=$word; done
case "$*" in *lts__t_sectors_op_read.sum*)
  echo '==ERROR== Failed to find metric lts__t_sectors_op_read.sum' > "$log"; exit 1;;
esac
cp {table} "$log"; exit 9
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    table = REPO / "profiling_lab/exercises/e05_memory_metrics/recorded/starter_h200.csv"
    ncu = tmp_path / "bin" / "ncu"
    ncu.parent.mkdir()
    ncu.write_text(NCU.format(table=table))
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ncu.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("stand_in")
def test_an_unknown_metric_is_left_out_and_the_table_is_reduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import record_counters

    wanted = ("lts__t_sectors_op_read.sum", "dram__bytes_read.sum")
    report = record_counters.counted(["program"], tmp_path, tmp_path / "out.csv", wanted)
    assert "unknown here: lts__t_sectors_op_read.sum" in capsys.readouterr().out
    assert len(report.launches) == 6, "ncu --kill ends with another exit code than 0"
    assert all(each.has("dram__bytes_read.sum") for each in report.launches)
    assert not any(each.has("dram__bytes_write.sum") for each in report.launches), "it was not asked for"


@pytest.mark.usefixtures("stand_in")
def test_without_a_table_it_says_what_ncu_said(tmp_path: Path) -> None:
    import record_counters

    (tmp_path / "bin" / "ncu").write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\n")
    with pytest.raises(RuntimeError, match="ERR_NVGPUCTRPERM"):
        record_counters.counted(["program"], tmp_path, tmp_path / "out.csv", ("dram__bytes_read.sum",))
