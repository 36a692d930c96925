# SPDX-License-Identifier: Apache-2.0
"""The masks of transformers as flash_attention takes them: causal, a window, lengths. No matrix is made.

A model asks for a mask once per forward and hands it to its layers. It gets a StructuredMask, which says what
the mask is, and makes the matrix only if some code computes with it. What is not recognized is a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_masks: Any = import_module("transformers.masking_utils")


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What a mask says. Query i stands at key i + keys - queries, so the last query at the last key."""

    causal: bool
    window: tuple[int, int] | None
    keys: int
    """The number of keys that count, from the first; behind them a static cache is not filled yet."""
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    """Offsets of the sequences in a batch with padding or packed sequences, its rows one behind the other.
    Padded rows and padded keys are sequences of their own: they give 0, and no query sees them."""


class StructuredMask(Tensor):  # type: ignore[misc]  # torch is untyped here
    """A boolean mask (batch, 1, queries, keys) that has no matrix until an op of torch's wants to read it."""

    structure: Structure
    _make: Callable[[], Tensor]
    _matrix: Tensor | None

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], device: Any, structure: Structure, make: Callable[[], Tensor]
    ) -> StructuredMask:
        mask: StructuredMask = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=torch.bool, device=device
        )
        mask.structure, mask._make, mask._matrix = structure, make, None
        return mask

    def matrix(self) -> Tensor:
        if self._matrix is None:
            self._matrix = self._make()
        return self._matrix

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(StructuredMask, lambda mask: mask.matrix(), (args, kwargs or {}))
        return func(*args, **kwargs)


def mask(*args: Any, **asked: Any) -> Tensor | None:
    """The mask function that transformers calls: None as for SDPA, a StructuredMask, or a matrix."""
    # What is traced may not depend on a tensor's values.
    if args or _is_traced(asked.get("attention_mask")) or not {"q_length", "cache_position"} & asked.keys():
        return _as_sdpa(*args, **asked)
    own = dict(asked)
    if "cache_position" in asked:  # transformers 4 counts the queries' positions in place of their number
        positions = asked["cache_position"]
        own |= {"q_length": positions.shape[0], "q_offset": positions[0] if len(positions) else 0}
        own.setdefault("device", positions.device)
    causal_skip = asked.get("allow_is_causal_skip", True)
    queries, device = own["q_length"], torch.device(own.get("device", "cpu"))
    if queries == 1 and not causal_skip and device.type != "cpu":  # goes into a compiled decoding step
        return _as_sdpa(*args, **asked)
    own["q_offset"] = int(own.get("q_offset", 0))  # of a static cache a tensor, which counts on in place
    structure = _structure(**own)
    if structure is None:
        return _as_sdpa(*args, **asked)
    if structure.window is None and structure.cu_seqlens_q is None and structure.keys == asked["kv_length"]:
        if structure.causal and causal_skip and queries in (1, structure.keys):
            return None
        if not structure.causal and asked.get("allow_is_bidirectional_skip", False):
            return None
    shape = (asked["batch_size"], 1, queries, asked["kv_length"])
    frozen = {"q_offset": own["q_offset"]} if "q_length" in asked else {}
    never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return StructuredMask(shape, device, structure, partial(_as_sdpa, **{**asked, **frozen, **never}))


def _as_sdpa(*args: Any, **asked: Any) -> Tensor | None:
    result: Tensor | None = _masks.sdpa_mask(*args, **asked)
    return result


def _is_traced(tensor: Any) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return tensor is not None and type(tensor) is not Tensor


# Recognizing what is asked for


@dataclass(frozen=True, slots=True)
class _Hole:
    """A place in a pattern that takes anything."""

    name: str

    def __call__(self) -> None: ...  # some patterns ask for functions


def _matches(found: Any, pattern: Any, values: dict[str, Any]) -> bool:
    """Whether two functions were made by the same code from the same values; holes name values."""
    if isinstance(pattern, _Hole):
        values[pattern.name] = found
        return True
    if isinstance(pattern, FunctionType):
        if not isinstance(found, FunctionType) or found.__code__ is not pattern.__code__:
            return False
        cells = zip(found.__closure__ or (), pattern.__closure__ or (), strict=True)
        return all(_matches(a.cell_contents, b.cell_contents, values) for a, b in cells)
    if isinstance(pattern, tuple):
        if not isinstance(found, tuple) or len(found) != len(pattern):
            return False
        return all(_matches(a, b, values) for a, b in zip(found, pattern, strict=True))
    return found is pattern


_WINDOW, _POSITIONS, _SEQUENCES = _Hole("window"), _Hole("positions"), _Hole("sequences")


def _packed(function: Any, positions: Any, sequences: Any) -> Any:
    """A mask's function for packed sequences; None where this version of transformers has none."""
    if remap := getattr(_masks, "remap_positions_for_packed_sequence", None):  # from 5.24 on
        of_sequences = _masks.packed_sequence_mask_function(sequences)
        return _masks.and_masks(remap(function, positions), of_sequences)
    pack = getattr(_masks, "packed_sequence_compatibility_function", None)
    return pack and pack(function, positions, sequences)


def _patterns() -> list[tuple[Any, bool, bool]]:
    """(what transformers makes, whether it is causal, whether it packs sequences); older ones make less."""

    def made_by(name: str, *arguments: Any) -> Any:
        function = getattr(_masks, name, None)
        return function(*arguments) if function is not None and arguments else function

    plain = [
        (made_by("causal_mask_function"), True),
        (made_by("bidirectional_mask_function"), False),
        (made_by("sliding_window_causal_mask_function", _WINDOW), True),
        (made_by("sliding_window_bidirectional_mask_function", _WINDOW), False),
    ]
    packed = [(_packed(pattern, _POSITIONS, _SEQUENCES), causal) for pattern, causal in plain if pattern]
    patterns = [(*one, packs) for ones, packs in ((plain, False), (packed, True)) for one in ones]
    return [one for one in patterns if one[0] is not None]


_PATTERNS = _patterns()


def _structure(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int = 0,
    mask_function: Any = _masks.causal_mask_function,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> Structure | None:
    """None where flash_attention has no option for it."""
    values: dict[str, Any] = {}
    matching = (kind for pattern, *kind in _PATTERNS if _matches(mask_function, pattern, values))
    causal, packs = next(matching, (None, None))
    if causal is None:
        return None
    at_keys = q_offset + q_length - kv_offset  # behind the last query
    size = values.get("window")
    if causal:
        keys, window = min(at_keys, kv_length), None if size is None else (size - 1, 0)
    else:
        keys, window = kv_length, None if size is None else (size, size)
    if (causal or window is not None) and at_keys != keys:
        return None
    if window is not None and max(q_length, keys) <= window[0] + 1:  # wider than all there is
        window = None
    if packs:
        if attention_mask is not None or not q_length == kv_length == at_keys:
            return None
        offsets = _offsets_of_packed(values["sequences"])
        return Structure(causal, window, keys, offsets, offsets)
    if attention_mask is None:
        return Structure(causal, window, keys)
    valid = attention_mask[:, kv_offset : kv_offset + keys]
    if valid.shape[0] != batch_size:
        return None
    if valid.shape[1] < keys:
        valid = torch.nn.functional.pad(valid, (0, keys - valid.shape[1]))
    return _with_lengths(Structure(causal, window, keys), valid.bool(), q_length)


def _offsets_of_packed(sequences: Tensor) -> Tensor:
    """Where sequences start, from (batch, rows) numbers that change from one to the next, and the end."""
    starts = torch.ones_like(sequences, dtype=torch.bool)
    starts[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    end = torch.tensor([sequences.numel()], device=sequences.device)
    return torch.cat([starts.flatten().nonzero().flatten(), end]).int()


def _with_lengths(plain: Structure, valid: Tensor, queries: int) -> Structure | None:
    """Of a batch whose sequences have padding in front, behind, or both; None for holes between keys."""
    keys = plain.keys
    if keys == 0:
        return plain
    count, first = valid.sum(1), valid.int().argmax(1)
    last = keys - 1 - valid.flip(1).int().argmax(1)
    rows: list[list[int]] = torch.stack([count, first, last], 1).tolist()  # the one wait for the GPU
    if all(n == keys for n, _, _ in rows):
        return plain
    cu_q, cu_k = [0], [0]
    for n, start, final in rows:
        end = final + 1 if n else start
        if n and end - start != n:
            return None
        if plain.causal or plain.window is not None:  # queries stand at keys, and some of these are padding
            ahead = keys - queries
            front = min(max(start - ahead, 0), queries)
            own = min(max(end - ahead, 0), queries) - front
        else:
            front, own = 0, queries
        for q, k in ((front, 0), (0, start), (own, end - start), (0, keys - end), (queries - front - own, 0)):
            if q or k:
                cu_q.append(cu_q[-1] + q)
                cu_k.append(cu_k[-1] + k)
    offsets = torch.tensor([cu_q, cu_k], dtype=torch.int32).to(valid.device, non_blocking=True)
    return Structure(plain.causal, plain.window, keys, offsets[0], offsets[1])
