# SPDX-License-Identifier: Apache-2.0
"""JSON and text for file names that are no UTF-8: bytes, of which Python keeps the odd ones as surrogates."""

from __future__ import annotations

from typing import Any


def encode(data: Any) -> bytes:
    """JSON in which every string is readable()."""
    import msgspec  # tables as text do not wait for it

    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(_with_readable_texts(msgspec.to_builtins(data)))


def indented(json: bytes) -> str:
    """The same JSON for people."""
    import msgspec

    return msgspec.json.format(json, indent=2).decode()


def readable(name: str) -> str:
    """The name as text that can be written: an invalid byte becomes \\xNN."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _with_readable_texts(data: Any) -> Any:
    if isinstance(data, str):
        return readable(data)
    if isinstance(data, dict):
        return {_with_readable_texts(key): _with_readable_texts(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_with_readable_texts(value) for value in data]
    return data
