# SPDX-License-Identifier: Apache-2.0
"""Measured links: the fit finds what the times were made of, and rows are compared with the right times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profiling_lab.analysis.collectives.bandwidth import Bandwidth
from profiling_lab.analysis.collectives.calls import Calls
from profiling_lab.analysis.collectives.links import Links, LinkTime, load, save
from profiling_lab.analysis.ranks.kinds import RankSet, Series, bus_bytes
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError

SIZES = tuple(1024 << (2 * i) for i in range(11))
LATENCY_NS, BUS_BYTES_PER_S = 20_000, 300_000_000_000


def time_ns(kind: str, ranks: int, size_bytes: int) -> int:
    return round(LATENCY_NS + bus_bytes(kind, size_bytes, ranks) * 1e9 / BUS_BYTES_PER_S)


def links(*kinds: tuple[str, int], sizes: tuple[int, ...] = SIZES) -> Links:
    times = [
        LinkTime(kind, ranks, size, time_ns(kind, ranks, size), 100, 10)
        for kind, ranks in kinds or (("AllReduce", 2),)
        for size in sizes
    ]
    return Links("NVIDIA H200", "2026-11-24T10:00:00Z", "nccl 2.28.9", "580.1", "2.11", "NV18", tuple(times))


@pytest.mark.parametrize(
    ("kind", "ranks"), [("AllReduce", 2), ("AllReduce", 4), ("AllGather", 4), ("SendRecv", 2)]
)
def test_the_fit_finds_what_the_times_were_made_of(kind: str, ranks: int) -> None:
    fit = links((kind, ranks)).fit(kind, ranks)
    assert fit.latency_ns == pytest.approx(LATENCY_NS, rel=1e-3)
    assert fit.bus_bytes_per_s == pytest.approx(BUS_BYTES_PER_S, rel=1e-3)
    assert fit.most_off_frac < 1e-3
    assert fit.time_ns(1 << 26) == pytest.approx(time_ns(kind, ranks, 1 << 26), rel=1e-3)
    half = fit.half_bytes
    reached = bus_bytes(kind, 1, ranks) * half / fit.time_ns(half) * 1e9
    assert reached == pytest.approx(fit.bus_bytes_per_s / 2)


def test_a_fit_says_how_far_it_is_off() -> None:
    """NCCL takes another protocol for messages of some sizes: no line goes through all of them."""
    whole = links()
    bent = replace(whole, times=tuple(replace(t, time_ns=3 * t.time_ns) if t.size_bytes == 1 << 20 else t
                                      for t in whole.times))  # fmt: skip
    fit = bent.fit("AllReduce", 2)
    assert fit.most_off_frac > 0.5 and fit.off_frac < fit.most_off_frac


def test_a_latency_is_never_negative() -> None:
    times = tuple(LinkTime("AllReduce", 2, size, max(round(size**1.2), 1), 0, 1) for size in SIZES)
    fit = replace(links(), times=times).fit("AllReduce", 2)
    assert fit.latency_ns == 0 and fit.bus_bytes_per_s > 0


def test_two_sizes_are_no_fit() -> None:
    with pytest.raises(NotEnoughDataError, match="needs 3 sizes, there are 2 of AllReduce on 2 ranks"):
        links(sizes=SIZES[:2]).fit("AllReduce", 2)
    with pytest.raises(NotEnoughDataError, match="there are 0 of AllToAll"):
        links().fit("AllToAll", 2)
    constant = tuple(LinkTime("AllReduce", 2, size, 10_000_000 - i, 0, 1) for i, size in enumerate(SIZES))
    with pytest.raises(NotEnoughDataError, match="did not take longer"):
        replace(links(), times=constant).fit("AllReduce", 2)


def test_expected_times_lie_between_measured_ones() -> None:
    found = links()
    asked = np.array([1, 1024, 1024 << 20, 4 << 30], dtype=np.int64)
    expected = found.expected_ns("AllReduce", 2, asked)
    assert expected is not None
    smallest, largest = time_ns("AllReduce", 2, 1024), time_ns("AllReduce", 2, 1 << 30)
    assert expected.tolist() == pytest.approx([smallest, smallest, largest, 4 * largest])
    between = found.expected_ns("AllReduce", 2, np.array([3 << 20], dtype=np.int64))
    assert between is not None
    assert time_ns("AllReduce", 2, 1 << 20) < between[0] < time_ns("AllReduce", 2, 4 << 20)
    assert found.expected_ns("AllReduce", 4, asked) is None, "another number of ranks is another time"
    assert found.expected_ns("Broadcast", 2, asked) is None


def test_a_send_is_between_two_ranks_whatever_the_group() -> None:
    found = links(("SendRecv", 2), ("SendRecv", 4))
    assert {time.ranks for time in found.of("SendRecv", 8)} == {4}
    assert {time.ranks for time in found.of("SendRecv", 0)} == {2}


def made_calls(duration_ns: list[int], late_ns: int = 0, size_bytes: int = 1 << 20) -> Calls:
    """All-reduces of rank 0 in a group of two; the other rank comes late_ns after it."""
    count = len(duration_ns)
    start = np.arange(count, dtype=np.int64) * 10_000_000
    zeros = np.zeros(count, dtype=np.int64)
    return Calls(
        rank=zeros,
        series=zeros,
        all_series=(Series("AllReduce", "0", RankSet.of((0, 1)), 2, "order"),),
        number=np.arange(count, dtype=np.int64),
        matched=zeros == 0,
        start_ns=start,
        end_ns=start + np.array(duration_ns, dtype=np.int64),
        size_bytes=zeros + size_bytes,
        place=zeros.astype(np.int32),
        places=(),
        whole=zeros == 0,
        compared=zeros == (0 if late_ns else 1),
        last_ns=start + late_ns,
        spread_ns=zeros,
        last_rank=zeros + 1,
        hidden={},
    )


def test_a_rate_is_compared_with_the_links_from_the_last_arrival_on() -> None:
    needed = time_ns("AllReduce", 2, 1 << 20)
    calls = made_calls([needed + 500_000] * 3, late_ns=500_000)
    share = Bandwidth(calls, links()).of_links(np.arange(3))
    assert share is not None and share.calls == 3
    assert share.reached_frac == pytest.approx(1.0, rel=1e-4)
    assert share.bus_bytes_per_s == pytest.approx((1 << 20) * 1e9 / needed, rel=1e-4)


def test_without_other_ranks_the_whole_duration_counts() -> None:
    needed = time_ns("AllReduce", 2, 1 << 20)
    share = Bandwidth(made_calls([2 * needed, 4 * needed]), links()).of_links(np.arange(2))
    assert share is not None and share.reached_frac == pytest.approx(1 / 3, rel=1e-4)


def test_what_was_not_measured_is_not_compared() -> None:
    calls = made_calls([100_000])
    assert Bandwidth(calls).of_links(np.arange(1)) is None
    assert Bandwidth(calls, links(("AllReduce", 4))).of_links(np.arange(1)) is None
    assert Bandwidth(made_calls([100_000], size_bytes=-1), links()).of_links(np.arange(1)) is None


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    found = links(("AllReduce", 2), ("AllGather", 4))
    save(found, tmp_path / "links.json")
    assert load(tmp_path / "links.json") == found
    assert str(found) == "4 x NVIDIA H200, NV18, nccl 2.28.9, driver 580.1: measured 2026-11-24"
    assert found.measured == (("AllReduce", 2), ("AllGather", 4))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data.update(schema="other/1"), id="another schema"),
        pytest.param(lambda data: data.update(times=[]), id="no times"),
        pytest.param(lambda data: data["times"][0].update(time_ns=0), id="no time"),
        pytest.param(lambda data: data["times"][0].update(time_ns=float("nan")), id="not a number"),
        pytest.param(lambda data: data["times"][0].update(ranks=1), id="one rank"),
        pytest.param(lambda data: data["times"][0].update(size_bytes="1k"), id="a text as size"),
        pytest.param(lambda data: data["times"][0].pop("kind"), id="no kind"),
        pytest.param(lambda data: data.pop("gpu"), id="no GPU"),
        pytest.param(lambda data: data.update(more=1), id="an unknown key"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "links.json"
    save(links(), path)
    data = json.loads(path.read_text())
    spoil(data)  # type: ignore[operator]
    path.write_text(json.dumps(data))
    with pytest.raises(
        UnreadableInputError, match="expected what `profiling-lab interconnect -o FILE` writes"
    ):
        load(path)


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="cannot read"):
        load(tmp_path / "none.json")
    (tmp_path / "links.json").write_text("{")
    with pytest.raises(UnreadableInputError, match="is not JSON"):
        load(tmp_path / "links.json")
    (tmp_path / "links.json").write_text("[]")
    with pytest.raises(UnreadableInputError, match="does not hold times of links"):
        load(tmp_path / "links.json")
