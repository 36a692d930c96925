# SPDX-License-Identifier: Apache-2.0
"""Reports of Nsight Compute: what ncu prints is read, and numbers that contradict each other are found."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.consistency import CLOCK, CYCLES, LOADS, RATE, READ, WRITTEN, contradictions
from profiling_lab.analysis.ncu.report import DURATION, ReportError, function_name, parse, read, scale

FIRST = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
FIRST = (*FIRST, "Block Size", "Grid Size", "Device", "CC")
KERNEL = "void lab::copy_rows<int, (bool)1>(const int *, int *)"
OWN = (1, "memory_bandwidth", "127.0.0.1", KERNEL, 1, 7, "(256, 1, 1)", "(16384, 1, 1)", 0, "9.0")
TRUE = {
    DURATION: ("us", "211.94"),
    CYCLES: ("cycle", "370,895"),
    CLOCK: ("cycle/nsecond", "1.75"),
    READ: ("Mbyte", "268.44"),
    WRITTEN: ("Mbyte", "251.20"),
    RATE: ("Tbyte/s", "2.45"),
    "launch__grid_size": ("", "16,384"),
    LOADS[0]: ("sector", "8,388,608"),
    LOADS[1]: ("request", "2,097,152"),
    "device__attribute_display_name": ("", "NVIDIA H200"),
    "sm__pipe_tensor_cycles_active.sum": ("", "n/a"),
}


def wide(*launches: dict[str, tuple[str, str]], before: str = "==PROF== Connected to process 1\n") -> str:
    """What `ncu --csv --page raw` prints."""
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    names = list(launches[0])
    table.writerow([*FIRST, *names])
    table.writerow([""] * len(FIRST) + [launches[0][name][0] for name in names])
    for number, launch in enumerate(launches):
        own = [
            number,
            1,
            "memory_bandwidth",
            "127.0.0.1",
            KERNEL,
            1,
            7,
            "(256, 1, 1)",
            "(16384, 1, 1)",
            0,
            "9.0",
        ]
        table.writerow([*own, *(launch[name][1] for name in names)])
    return f"{before}{text.getvalue()}==PROF== Disconnected from process 1\n"


def changed(**changes: str) -> dict[str, tuple[str, str]]:
    names = {
        "duration": DURATION,
        "read": READ,
        "grid": "launch__grid_size",
        "sectors": LOADS[0],
        "rate": RATE,
    }
    return TRUE | {names[key]: (TRUE[names[key]][0], value) for key, value in changes.items()}


def test_a_launch_has_its_numbers_in_base_units() -> None:
    (launch,) = parse(wide(TRUE)).launches
    assert (launch.function, launch.grid, launch.threads) == ("copy_rows", (16384, 1, 1), 256)
    assert launch.device == "NVIDIA H200" and launch.process == "memory_bandwidth"
    assert launch.duration_ns == pytest.approx(211_940)
    assert launch.total(READ, WRITTEN) == pytest.approx(519.64e6)
    assert launch.value(RATE) == pytest.approx(2.45e12) and launch.value(CLOCK) == pytest.approx(1.75e9)
    assert "sm__pipe_tensor_cycles_active.sum" not in launch.metrics, "n/a is no zero"


def test_the_other_table_of_ncu_says_the_same() -> None:
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    table.writerow([*FIRST, "Section Name", "Metric Name", "Metric Unit", "Metric Value"])
    for name, (unit, value) in TRUE.items():
        table.writerow([0, *OWN, "Command line profiler metrics", name, unit, value])
    assert parse(text.getvalue()).launches == parse(wide(TRUE)).launches


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("ns", 1), ("usecond", 1e3), ("ms", 1e6), ("second", 1e9), ("byte", 1), ("Kbyte", 1e3),
        ("byte/ns", 1e9), ("Gbyte/s", 1e9), ("byte/second", 1), ("Ghz", 1e9), ("cycle/usecond", 1e6),
        ("Gbyte", 1e9), ("%", 1), ("Kbyte/block", 1e3), ("register/thread", 1), ("inst/cycle", 1), ("", 1),
    ],
)  # fmt: skip
def test_units(unit: str, factor: float) -> None:
    assert scale(unit) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("copy", "copy"),
        ("copy(const float *, float *, long)", "copy"),
        ("void copy<float, (int)4>(T1 *, const T1 *)", "copy"),
        ("void (anonymous namespace)::copy<(bool)1>(int)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::CUDAFunctor<(int)1>>(int)",
         "vectorized_elementwise_kernel"),
    ],
)  # fmt: skip
def test_the_name_of_a_kernel_alone(kernel: str, name: str) -> None:
    assert function_name(kernel) == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no table of ncu"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "profiling-lab doctor"),
        ("\n".join(wide(TRUE).splitlines()[:3]), "no launch"),
        (wide(TRUE).replace("(16384, 1, 1)", "many"), "is damaged"),
    ],
)
def test_bad_input_is_one_sentence(text: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text(text)
    with pytest.raises(ReportError, match=hint) as told:
        read(tmp_path / "report.csv")
    assert "\n" not in str(told.value)


def test_files_that_cannot_be_read_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReportError, match=r"there is no report report\.csv"):
        read(tmp_path / "report.csv")
    (tmp_path / "report.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError, match="no CSV of ncu"):
        read(tmp_path / "report.csv")
    (tmp_path / "report.ncu-rep").write_bytes(b"NVR")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReportError, match="ncu is not on the PATH"):
        read(tmp_path / "report.ncu-rep")


def test_a_binary_report_is_exported_with_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.ncu-rep").write_text(wide(TRUE))
    fake = tmp_path / "ncu"
    fake.write_text('#!/bin/sh\n[ "$1" = --import ] && exec /bin/cat "$2"\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read(tmp_path / "report.ncu-rep").launches[0].function == "copy_rows"
    fake.write_text("#!/bin/sh\necho ==ERROR== no such format\nexit 1\n")
    with pytest.raises(ReportError, match="no such format"):
        read(tmp_path / "report.ncu-rep")


def test_a_missing_metric_or_kernel_is_named() -> None:
    report = parse(wide(TRUE))
    with pytest.raises(ReportError, match=r"no metric lts__t_sectors\.sum"):
        report.launches[0].value("lts__t_sectors.sum")
    with pytest.raises(ReportError, match="no launch of gather; it has copy_rows"):
        report.last("gather")


def test_a_true_report_has_no_contradiction() -> None:
    report = parse(wide(TRUE, changed(duration="212.10")))
    assert contradictions(report, program="memory_bandwidth", functions=("copy_rows",), needs=(READ,)) == []


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"duration": "100.00"}, "clock rate"),
        ({"read": "500.00"}, "bytes of device memory"),
        ({"rate": "4.80"}, "bytes of device memory"),
        ({"grid": "8,192"}, "grid size"),
        ({"sectors": "83,886,080"}, "more sectors"),
        ({"duration": "0"}, "duration of zero"),
        ({"read": "-1"}, "negative"),
    ],
)
def test_a_number_that_was_typed_in_contradicts_the_others(change: dict[str, str], hint: str) -> None:
    found = contradictions(parse(wide(changed(**change))))
    assert any(hint in text for text in found), found


def test_rows_of_others_are_found() -> None:
    assert "same row twice" in contradictions(parse(wide(TRUE, TRUE)))[0]
    other = wide(TRUE).replace('"0","1","memory', '"0","2","memory').splitlines()
    same_id = parse("\n".join([*wide(TRUE).splitlines(), *other[3:]]))
    assert any("same ID" in text for text in contradictions(same_id))
    assert "not of gather" in contradictions(parse(wide(TRUE)), program="gather")[0]
    assert "no launch of gather" in contradictions(parse(wide(TRUE)), functions=("gather",))[0]
    assert (
        "no metric dram__x"
        in contradictions(parse(wide(TRUE)), functions=("copy_rows",), needs=("dram__x",))[0]
    )
    second = wide(TRUE, changed(duration="212.10")).rpartition("NVIDIA H200")
    mixed = parse("NVIDIA H100".join((second[0], second[2])))
    assert any("different GPUs" in text for text in contradictions(mixed))


def test_occupancy_follows_from_the_limits_of_the_launch() -> None:
    limits = {f"launch__occupancy_limit_{each}": ("block", "8") for each in ("blocks", "shared_mem", "warps")}
    half = {"launch__occupancy_limit_registers": ("block", "4")} | limits
    pct = ncu_report.parse(wide(TRUE | half | {"sm__maximum_warps_per_active_cycle_pct": ("%", "50")}))
    assert contradictions(pct) == []
    full = ncu_report.parse(wide(TRUE | half | {"sm__maximum_warps_per_active_cycle_pct": ("%", "100")}))
    assert "theoretical occupancy" in contradictions(full)[0]
