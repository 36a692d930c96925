# SPDX-License-Identifier: Apache-2.0
"""Host events reported by Python and torch: garbage collections and compilations."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

from profiling_lab import _import_watch

_COMPILER = "torch._dynamo.callback"


def watch() -> Callable[[], None]:
    """Report every garbage collection to the running recording, and every compilation by torch.compile once
    the program has imported the compiler. Returns a function that ends this.
    """
    from profiling_lab import _recorder

    undo: list[Callable[[], None]] = []

    def tell_of_compilations(module: Any) -> None:
        handler = module.callback_handler
        handler.register_start_callback(_recorder.compilation_began)
        handler.register_end_callback(_recorder.compilation_ended)
        undo.append(lambda: handler.remove_start_callback(_recorder.compilation_began))
        undo.append(lambda: handler.remove_end_callback(_recorder.compilation_ended))

    gc.callbacks.append(_recorder.collection_event)
    undo.append(lambda: gc.callbacks.remove(_recorder.collection_event))
    undo.append(_import_watch.when_imported(tell_of_compilations, _COMPILER))

    def end() -> None:
        for step in reversed(undo):
            with contextlib.suppress(ValueError):  # the program cleared the list itself
                step()

    return end
