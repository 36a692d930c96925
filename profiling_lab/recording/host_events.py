# SPDX-License-Identifier: Apache-2.0
"""What Python and torch say themselves about pauses of the host: garbage collections and compilations."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

from profiling_lab.recording import torch_import

_COMPILER = "torch._dynamo.callback"


def watch() -> Callable[[], None]:
    """Have the running recording told of every garbage collection, and of every compilation by torch.compile
    once the program has imported the compiler. Returns how to end that.
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
    undo.append(torch_import.when_imported(tell_of_compilations, _COMPILER))

    def end() -> None:
        for step in reversed(undo):
            with contextlib.suppress(ValueError):  # the program has emptied the list itself
                step()

    return end
