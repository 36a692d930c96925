# SPDX-License-Identifier: Apache-2.0
"""The barriers of a unit of the Hopper forward (csrc/ops/attention/sm90/fwd_mainloop.cuh, fwd_load.cuh), and
of the kernel for dK and dV above head_dim 128.

Every warp is a generator that yields what it waits for and arrives in between, as the kernel's warps do.
Who goes on next is drawn at random, with speeds that differ and change: a schedule in which a warp waits
for what cannot come any more, or reads a buffer that has been refilled, shows up among a few hundred.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

Steps = Generator[Callable[[], bool], None, None]
WARPS = 4  # of a warpgroup


@dataclass(frozen=True, slots=True)
class Config:
    """As FwdConfig; `arrivals` is how many warps of a group give a buffer back: the kernel's four, or one."""

    tile_rows: int
    tile_keys: int
    stages: int = 2
    stages_q: int = 3
    turns: bool = False
    counts: bool = True
    arrivals: int = WARPS

    @property
    def groups(self) -> int:
        return self.tile_rows // 64


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of queries: the key tiles [begin, end) it sees, and where each warpgroup's part of them ends."""

    number: int
    begin: int
    end: int
    ends: tuple[int, ...]


def causal_tile(config: Config, length: int, number: int) -> Tile:
    """Tile `number` of sequences of that length under a causal mask, all counted through."""
    row = number % -(-length // config.tile_rows) * config.tile_rows
    rows = min(config.tile_rows, length - row)
    end = -(-(row + rows) // config.tile_keys)
    ends = []
    for group in range(config.groups):
        own = -(-(row + min(64 * group + 64, rows)) // config.tile_keys)
        ends.append(end if config.turns else 0 if 64 * group >= rows else max(own, end - 1, 1))
    return Tile(number, 0, end, tuple(ends))


class Barrier:
    """An mbarrier: `expected` arrivals complete a phase. A wait is for the end of the phase of a parity."""

    def __init__(self, expected: int) -> None:
        self.expected = self.missing = expected
        self.phase = 0

    def arrive(self) -> None:
        self.missing -= 1
        assert self.missing >= 0, "more arrivals than the barrier expects"
        if self.missing == 0:
            self.phase, self.missing = self.phase + 1, self.expected

    def passed(self, parity: int) -> bool:
        return self.phase % 2 != parity


@dataclass
class Ring:
    """As Ring in tiles.cuh."""

    stages: int
    stage: int = 0
    parity: int = 0

    def advance(self) -> None:
        self.stage += 1
        if self.stage == self.stages:
            self.stage, self.parity = 0, self.parity ^ 1


@dataclass
class Buffers:
    """A ring's barriers, and which key tile or query tile lies in each buffer."""

    full: list[Barrier]
    empty: list[Barrier]
    holds: list[object] = field(default_factory=list)


def run_all(warps: list[Steps], choose: random.Random) -> None:
    """Until all have ended; raises Stopped where none of those that are left can go on."""
    waits: list[Callable[[], bool] | None] = [None] * len(warps)
    alive = set(range(len(warps)))
    speed = [0.01 + choose.random() ** 3 for _ in warps]
    while alive:
        ready = [i for i in alive if (wait := waits[i]) is None or wait()]
        if not ready:
            raise Stopped(f"{len(alive)} of {len(warps)} warps wait for ever")
        now = choose.choices(ready, [speed[i] for i in ready])[0]
        if choose.random() < 0.01:
            speed = [0.01 + choose.random() ** 3 for _ in warps]
        try:
            waits[now] = next(warps[now])
        except StopIteration:
            alive.discard(now)


def full(buffers: Buffers, ring: Ring, content: object) -> Steps:
    """Waits for the ring's buffer, which must then hold that."""
    stage, parity = ring.stage, ring.parity
    yield lambda: buffers.full[stage].passed(parity)
    assert buffers.holds[stage] == content, "a buffer of another tile"


def meet(barrier: Barrier) -> Steps:
    phase = barrier.phase
    barrier.arrive()
    yield lambda: barrier.phase > phase


class Unit:
    """Runs a unit over `tiles`; raises Stopped, or AssertionError where a warp reads what it must not."""

    def __init__(self, config: Config, tiles: list[Tile], seed: int) -> None:
        self.config, self.random = config, random.Random(seed)
        self.tiles = iter(tiles)
        warps = config.groups * config.arrivals
        self.q, self.k, self.v = (
            Buffers([Barrier(1) for _ in range(n)], [Barrier(warps) for _ in range(n)], [None] * n)
            for n in (config.stages_q, config.stages, config.stages)
        )
        self.turn = [Barrier(2 * WARPS), Barrier(2 * WARPS)]
        self.own = [Barrier(WARPS) for _ in range(config.groups)]

    def run(self) -> None:
        warps = [self.produce()]
        warps += [self.consume(group, warp) for group in range(self.config.groups) for warp in range(WARPS)]
        run_all(warps, self.random)

    def produce(self) -> Steps:
        config = self.config
        q, k, v = Ring(config.stages_q), Ring(config.stages), Ring(config.stages)

        def fill(buffers: Buffers, ring: Ring, content: object) -> Steps:
            stage, parity = ring.stage, ring.parity
            yield lambda: buffers.empty[stage].passed(parity ^ 1)
            buffers.holds[stage] = content
            buffers.full[stage].arrive()
            ring.advance()

        tile = next(self.tiles, None)
        if config.stages_q > 1 or tile is None:
            yield from fill(self.q, q, tile)
        while tile is not None:
            current, count = tile, tile.end - tile.begin
            announces = max(min(count - 2, 1) if config.counts else count - 2, 0)
            looks = announces if config.stages_q > 1 else count - 1
            looks = min(count - 1, 1) if config.counts else looks
            yield from fill(self.k, k, (current, current.end - 1))
            if config.stages_q == 1:
                yield from fill(self.q, q, current)
            for left in range(count - 1, -1, -1):
                n = current.begin + left
                if left > 0:
                    yield from fill(self.k, k, (current, n - 1))
                yield from fill(self.v, v, (current, n))
                if left == looks:
                    tile = next(self.tiles, None)
                if config.stages_q > 1 and left == announces:
                    yield from fill(self.q, q, tile)
            if config.stages_q == 1 and tile is None:
                yield from fill(self.q, q, tile)

    def consume(self, group: int, warp: int) -> Steps:
        config = self.config
        q, k, v = Ring(config.stages_q), Ring(config.stages), Ring(config.stages)
        leaving: int | None = None

        def give_back(barrier: Barrier) -> None:
            if warp < config.arrivals:
                barrier.arrive()

        def release(buffers: Buffers, ring: Ring) -> None:
            give_back(buffers.empty[ring.stage])
            ring.advance()

        def wait_full(buffers: Buffers, ring: Ring) -> Steps:
            stage, parity = ring.stage, ring.parity
            yield lambda: buffers.full[stage].passed(parity)

        def skip(buffers: Buffers, ring: Ring) -> Steps:
            yield from wait_full(buffers, ring)
            release(buffers, ring)

        def product(buffers: Buffers, ring: Ring, tile: Tile, n: int) -> Steps:
            yield from wait_full(buffers, ring)
            assert buffers.holds[ring.stage] == (tile, n), "a product of another key tile"

        def scores(tile: Tile, n: int) -> Steps:
            yield from product(self.k, k, tile, n)
            if config.turns:
                yield from meet(self.turn[group])
            yield from meet(self.own[group])  # four warps issue a product together

        def output(tile: Tile, n: int) -> Steps:
            yield from product(self.v, v, tile, n)
            yield from meet(self.own[group])

        def pass_turn() -> None:
            if config.turns:
                self.turn[1 - group].arrive()

        def release_q(tile: Tile, n: int) -> None:
            if config.stages_q == 1 and n == tile.begin:
                give_back(self.q.empty[q.stage])

        def next_tile() -> Generator[Callable[[], bool], None, Tile | None]:
            yield from wait_full(self.q, q)
            tile = self.q.holds[q.stage]
            assert tile is None or isinstance(tile, Tile)
            return tile

        def store(tile: Tile, stage: int) -> Steps:
            nonlocal leaving
            if config.stages_q > 1:
                assert self.q.holds[stage] == tile, "O over the queries of another tile"
                yield from meet(self.own[group])
                leaving = stage

        def settle() -> None:
            nonlocal leaving
            if leaving is not None:
                give_back(self.q.empty[leaving])
            leaving = None

        if config.turns and group == 1:
            self.turn[0].arrive()
        tile = yield from next_tile()
        while tile is not None:
            end = tile.ends[group]
            if end == tile.begin:
                for _ in range(tile.begin, tile.end):
                    yield from skip(self.k, k)
                    yield from skip(self.v, v)
                release(self.q, q)
                tile = yield from next_tile()
                continue
            if end < tile.end:
                yield from skip(self.k, k)
                yield from skip(self.v, v)
            n = end - 1
            yield from scores(tile, n)
            pass_turn()
            yield lambda: True
            release(self.k, k)
            release_q(tile, n)
            while True:
                last, skips, done, n_output, stage = n == tile.begin, False, tile, n, q.stage
                n -= 1
                if last:
                    if config.stages_q == 1:
                        break
                    settle()
                    q.advance()
                    tile = yield from next_tile()
                    if tile is None or tile.ends[group] == tile.begin:
                        break
                    skips = tile.ends[group] < tile.end
                    if skips:
                        yield from skip(self.k, k)
                    n = tile.ends[group] - 1
                yield from scores(tile, n)
                yield from output(done, n_output)
                pass_turn()
                yield lambda: True
                release(self.k, k)
                release_q(tile, n)
                yield lambda: True
                release(self.v, v)
                settle()
                if last:
                    if skips:
                        yield from skip(self.v, v)
                    yield from store(done, stage)
            yield from output(done, n_output)
            yield lambda: True
            release(self.v, v)
            settle()
            yield from store(done, stage)
            settle()
            if config.stages_q == 1:
                q.advance()
                tile = yield from next_tile()


class CachedUnit(Unit):
    """A unit whose keys are in a cache (cache/load.cuh): one warp announces tiles, one loads K, one loads
    V. These two read the description that comes with Q, and need not give it back: no consumer does so
    before it has seen the keys that they load.
    """

    def __init__(self, config: Config, tiles: list[Tile], seed: int) -> None:
        super().__init__(config, tiles, seed)
        self.all, self.pace = tiles, Barrier(2)

    def run(self) -> None:
        warps = [self.announce(), self.load(self.k, True), self.load(self.v, False)]
        warps += [self.consume(group, warp) for group in range(self.config.groups) for warp in range(WARPS)]
        run_all(warps, self.random)

    def announce(self) -> Steps:
        q = Ring(self.config.stages_q)
        while True:
            tile = next(self.tiles, None)
            stage, parity = q.stage, q.parity
            yield lambda s=stage, p=parity: self.q.empty[s].passed(p ^ 1)
            self.q.holds[stage] = tile
            self.q.full[stage].arrive()
            q.advance()
            if tile is None:
                return
            yield from meet(self.pace)

    def load(self, side: Buffers, paces: bool) -> Steps:
        q, ring = Ring(self.config.stages_q), Ring(self.config.stages)
        number = 0
        while True:
            yield lambda s=q.stage, p=q.parity: self.q.full[s].passed(p)
            tile = self.q.holds[q.stage]
            assert tile is None or tile is self.all[number], "a tile is missed"
            number += 1
            q.advance()
            if tile is None:
                return
            assert isinstance(tile, Tile)
            for n in reversed(range(tile.begin, tile.end)):
                yield lambda s=ring.stage, p=ring.parity: side.empty[s].passed(p ^ 1)
                side.holds[ring.stage] = (tile, n)
                side.full[ring.stage].arrive()
                ring.advance()
                if paces and n == min(tile.end - 1, tile.begin + 2):
                    self.pace.arrive()


class WideBackward:
    """dK and dV above head_dim 128 (wide/kv_kernel.cuh), over `steps` query tiles: one warpgroup passes P to
    the other. `ahead`: what they add to dV and dK for a tile runs under the arithmetic of the next tile.
    """

    def __init__(self, stages: int, ahead: bool, steps: int, seed: int) -> None:
        self.steps, self.ahead, self.stages, self.random = steps, ahead, stages, random.Random(seed)
        many = range(stages)
        # A copy and a warp's lanes fill Q with its statistics; every warp of both groups gives them back.
        self.q = Buffers([Barrier(2) for _ in many], [Barrier(2 * WARPS) for _ in many], [None] * stages)
        self.dout = Buffers([Barrier(1) for _ in many], [Barrier(2) for _ in many], [None] * stages)
        self.own = [Barrier(WARPS), Barrier(WARPS)]
        self.p_full, self.p_empty = ([Barrier(2 * WARPS) for _ in range(2)] for _ in range(2))
        self.p: list[object] = [None, None]

    def run(self) -> None:
        groups = [f(warp) for f in (self.of_dv, self.of_dk) for warp in range(WARPS)]
        run_all([self.copies(), self.statistics(), *groups], self.random)

    def copies(self) -> Steps:
        q, dout = Ring(self.stages), Ring(self.stages)
        for step in range(self.steps):
            for buffers, ring in ((self.q, q), (self.dout, dout)):
                yield lambda b=buffers, s=ring.stage, p=ring.parity: b.empty[s].passed(p ^ 1)
                buffers.holds[ring.stage] = step
                buffers.full[ring.stage].arrive()
                ring.advance()

    def statistics(self) -> Steps:
        q = Ring(self.stages)
        for _ in range(self.steps):
            yield lambda s=q.stage, p=q.parity: self.q.empty[s].passed(p ^ 1)
            self.q.full[q.stage].arrive()
            q.advance()

    def of_dv(self, warp: int) -> Steps:
        ring, held = Ring(self.stages), Ring(self.stages)

        def add(step: int) -> Steps:
            yield from full(self.dout, held, step)
            yield from meet(self.own[0])

        def end() -> Steps:
            yield lambda: True  # the product's end
            if warp == 0:
                self.dout.empty[held.stage].arrive()
            held.advance()

        for step in range(self.steps):
            yield from full(self.q, ring, step)
            yield from meet(self.own[0])  # four warps issue a product together
            if self.ahead and step:
                yield from add(step - 1)
            yield lambda: True
            if self.ahead:
                self.q.empty[ring.stage].arrive()
                if step:
                    yield from end()
            else:
                yield from add(step)
            if step >= 2:
                yield from meet(self.p_empty[step % 2])
            self.p[step % 2] = step
            self.p_full[step % 2].arrive()
            if not self.ahead:
                self.q.empty[ring.stage].arrive()
                yield from end()
            ring.advance()
        if self.ahead and self.steps:
            yield from add(self.steps - 1)
            yield from end()

    def of_dk(self, warp: int) -> Steps:
        ring, held = Ring(self.stages), Ring(self.stages)

        def add(step: int) -> Steps:
            assert self.q.holds[held.stage] == step, "dK of another tile's queries"
            yield from meet(self.own[1])

        def end() -> Steps:
            yield lambda: True
            self.q.empty[held.stage].arrive()
            held.advance()

        for step in range(self.steps):
            yield from full(self.dout, ring, step)
            yield from meet(self.own[1])
            if self.ahead and step:
                yield from add(step - 1)
            yield from full(self.q, ring, step)
            yield from meet(self.p_full[step % 2])
            assert self.p[step % 2] == step, "P of another tile"
            if step + 2 < self.steps:
                self.p_empty[step % 2].arrive()
            yield lambda: True
            if warp == 0:
                self.dout.empty[ring.stage].arrive()
            if self.ahead and step:
                yield from end()
            if not self.ahead:
                yield from add(step)
                yield from end()
            ring.advance()
        if self.ahead and self.steps:
            yield from add(self.steps - 1)
            yield from end()


class Stopped(Exception):
    """No warp can go on."""
