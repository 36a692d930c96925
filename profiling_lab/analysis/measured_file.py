# SPDX-License-Identifier: Apache-2.0
"""Files of what was measured on a machine: JSON with the name of its schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from profiling_lab.errors import UnreadableInputError


def write(path: Path, schema: str, values: dict[str, Any]) -> None:
    """Whole or not at all: a reader never sees half of it."""
    import json

    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"schema": schema, **values}, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read(path: Path) -> Any:
    """What the JSON holds, whatever that is. Raises UnreadableInputError for what is none."""
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableInputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UnreadableInputError(f"{path} is not JSON: {error}") from error
