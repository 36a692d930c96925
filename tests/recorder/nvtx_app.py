# SPDX-License-Identifier: Apache-2.0
"""The libraries that fake_nvtx.cpp becomes, for the script of a test: the folder APPS holds them."""

from __future__ import annotations

import ctypes
import os

_HANDLES = ("domain", "register", "domain_wide", "register_wide", "resource")


def app(name: str) -> ctypes.CDLL:
    """Load one of them. Its functions are named app_..., without types that could be forgotten."""
    library = ctypes.CDLL(os.path.join(os.environ["APPS"], name))
    handle, text, wide = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p
    i, u32, u64 = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64
    arguments = {
        "push": (text,),
        "push_wide": (wide,),
        "start": (text,),
        "end": (u64,),
        "mark": (text, u32, i, u64),
        "mark_wide": (wide,),
        "domain": (text,),
        "domain_wide": (wide,),
        "register": (handle, text),
        "register_wide": (handle, wide),
        "domain_push": (handle, handle, i),
        "domain_pop": (handle,),
        "name_category": (handle, u32, text),
        "name_category_wide": (handle, u32, wide),
        "name_thread": (u32, text),
        "name_thread_wide": (u32, wide),
        "name_stream": (u64, text),
        "resource": (handle, i, u64, text),
        "schema": (handle, u64),
        "enum": (handle,),
        "push_all_reduce": (handle, handle, u64, u64, u64, u64),
        "payload_range": (handle, handle, u64),
    }
    for function, types in arguments.items():
        getattr(library, "app_" + function).argtypes = types
    for function in _HANDLES:
        getattr(library, "app_" + function).restype = handle
    for function in ("start", "schema", "enum"):
        getattr(library, "app_" + function).restype = u64
    return library
