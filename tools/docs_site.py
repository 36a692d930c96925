# SPDX-License-Identifier: Apache-2.0
"""What the documentation site is made of: a hook of MkDocs, named in mkdocs.yml.

Pages keep the folders of the repository, so that a link works there and on the site alike. Files that pages
link to come along. Pages of the API are made here, from the modules that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPO = Path(__file__).resolve().parents[1]
EXERCISES = "profiling_lab/exercises/e*/README.md"
GLOBS = ("*.md", "docs/**/*.md", "csrc/**/*.md", "notebooks/*.md", "tests/recorder/*.md", EXERCISES)
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
_CODE = re.compile(r"(?ms)^```.*?^```$|`[^`\n]*`")

RECORDING = (
    "recording.recorder",
    "recording.schedule",
    "integrations.torch_profiler",
    "api.trace_tables",
    "api.table",
    "api.row",
    "api.comparisons",
    "trace.trace",
    "errors",
)
OPS = (
    "ops.attention",
    "ops.layer_norm_gelu",
    "ops.heavy_layer",
    "ops.ladder_attention",
    "models.transformer",
)
UTILITIES = (
    "utils.decorator",
    "utils.result",
    "utils.gpu_monitor",
    "utils.training",
    "utils.benchmark",
    "utils.memory",
    "utils.nvtx",
    "utils.intensity",
    "utils.session",
    "utils.unified_profiler",
)
API = {
    "index": ("Recording and traces", RECORDING),
    "ops": ("Ops", OPS),
    "analysis": ("Analysis", ("analysis",)),
    "rules": ("Rules", ("rules.rule", "rules.finding", "rules.view", "rules.run")),
    "measure": ("Measuring", ("measure",)),
    "utils": ("Utilities", UTILITIES),
}
"""Page -> its title, and modules of profiling_lab; a package means the modules in it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the exercises: one that is added needs no line in mkdocs.yml."""
    exercises = sorted(page.relative_to(REPO).as_posix() for page in REPO.glob(EXERCISES))
    assert config.nav is not None
    config.nav.insert(-3, {"Learn": exercises})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = [page.relative_to(REPO).as_posix() for pattern in GLOBS for page in sorted(REPO.glob(pattern))]
    linked = sorted({target for page in pages for target in _linked_files(REPO / page)} - set(pages))
    shown = Files([file for file in files if file.src_dir != config.docs_dir])  # of the theme
    for name in [*dict.fromkeys(pages), *linked]:
        shown.append(File(name, str(REPO), config.site_dir, config.use_directory_urls))
    for name, (title, modules) in API.items():
        text = "\n\n".join([f"# {title}", *(f"::: profiling_lab.{module}" for module in _modules(modules))])
        shown.append(File.generated(config, f"api/{name}.md", content=text + "\n"))
    return shown


def _linked_files(page: Path) -> Iterator[str]:
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file():
            yield path.relative_to(REPO).as_posix()


def _modules(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        folder = REPO / "profiling_lab" / name.replace(".", "/")
        if not folder.is_dir():
            yield name
            continue
        for file in sorted(folder.rglob("*.py")):
            module = ".".join(file.relative_to(REPO / "profiling_lab").with_suffix("").parts)
            if not file.stem.startswith("_"):
                yield module
