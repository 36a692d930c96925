# SPDX-License-Identifier: Apache-2.0
"""The words of the command line: nearest spellings, grouped help, completion, one word for overwriting."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import COMMANDS, GROUPS, build_parser, main


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("linse run.sqlite", "profiling-lab: error: there is no command 'linse'; did you mean lines?"),
        ("exercise chek", "profiling-lab exercise: error: there is no action 'chek'; did you mean check?"),
        ("lines run.sqlite --fromat json", "--fromat json; did you mean --format?"),
        ("lines run.sqlite --fromat=json", "--fromat=json; did you mean --format?"),
        ("record --overwite train.py", "--overwite; did you mean --overwrite?"),
        ("exercise check --fromat=json", "--fromat=json; did you mean --format?"),
        ("--verson", "--verson; did you mean --version?"),
    ],
)
def test_a_misspelled_word_gets_the_nearest_one(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(words.split(), capsys).endswith(said)


def test_a_word_like_no_other_gets_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["frobnicate"], capsys)
    assert "did you mean" not in said and all(name in said for name in COMMANDS)
    assert "did you mean" not in refused(["lines", "run.sqlite", "other.sqlite"], capsys)


def test_an_unknown_option_shows_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["steps", "run.sqlite", "--zzz"])
    assert capsys.readouterr().err.startswith("usage: profiling-lab steps ")


def test_help_lists_every_command_once_in_its_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for title, names in GROUPS:
        at = lines.index(f"{title}:")
        listed = lines[at + 1 : at + 1 + len(names)]
        assert [line.split()[0] for line in listed] == list(names), "one line each"
    assert len(COMMANDS) == len(set(COMMANDS))
    assert [line for line in lines if line.startswith("  lines ")] != []


def test_completion_without_shtab_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    assert "pip install 'profiling-lab[completion]'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_commands_options_and_files(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in (*COMMANDS, "min-share", "inclusive"))


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    main(["--print-completion", "bash"])
    script = tmp_path / "completion.sh"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "run.sqlite").touch()

    def completed(*words: str) -> list[str]:
        asked = " ".join(f"'{word}'" for word in words)
        code = f"""
source {script}
COMP_WORDS=(profiling-lab {asked}); COMP_CWORD={len(words)}
_shtab_profiling_lab profiling-lab "${{COMP_WORDS[COMP_CWORD]}}"
echo "${{COMPREPLY[@]}}"
"""
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        return done.stdout.split()

    assert completed("lin") == ["lines"]
    assert completed("lines", "--min") == ["--min-share"]
    assert completed("lines", "run") == ["run.sqlite"]


def test_one_word_allows_to_overwrite() -> None:
    """Every command that takes a name for its output and may find a file there."""

    def options(parser: argparse.ArgumentParser) -> set[str]:
        return {name for action in parser._actions for name in action.option_strings}

    commands = next(
        action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    has = {name: options(command) for name, command in commands.choices.items()}
    assert not [name for name, known in has.items() if {"--force", "--replace", "-f"} & known]
    assert {name for name, known in has.items() if "--overwrite" in known} == {
        name for name, known in has.items() if {"--output", "--save"} & known
    } - {"demo", "bench"}, "the demo's recording never replaces a file, and bench appends"


OWN = [["lines"], ["lines", "--tree"], ["kernels"], ["check"], ["gaps"], ["syncs"], ["apis"], ["report"]]


@pytest.fixture
def run(tmp_path: Path) -> str:
    builder = TraceBuilder().launch("gemm", 1000, stack="/app/train.py:5 main > /app/model.py:7 forward")
    builder.launch("gemm", 1000, stack="/app/train.py:6 main")
    return str(builder.write(tmp_path / "run.sqlite"))


@pytest.mark.parametrize("words", OWN, ids=" ".join)
def test_own_that_names_no_file_is_an_error(
    words: list[str], run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main([words[0], run, *words[1:], "--own", "train.py", "--own", "/nosuch"]) == 2
    said = capsys.readouterr().err
    assert "--own /nosuch: no file of the recording is there" in said
    assert "/app/model.py" in said and "/app/train.py" in said
    assert main(["lines", run, "--own", "/app", "--own", "model.py"]) == 0


def test_own_may_name_a_file_of_one_side_only(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = TraceBuilder().launch("gemm", 1000, stack="/app/new.py:5 main").write(tmp_path / "new.sqlite")
    assert main(["diff", run, str(new), "--own", "new.py"]) in (0, 3)
    assert main(["diff", run, str(new), "--own", "/nosuch"]) == 2
    assert "--own /nosuch" in capsys.readouterr().err


def test_own_of_a_part_of_the_trace_may_name_any_file_of_the_whole(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lines", run, "--own", "model.py", "--range", "7us:10us"]) != 2
    assert "--own" not in capsys.readouterr().err


def test_a_trace_without_stacks_says_so_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = TraceBuilder().launch("gemm", 1000).write(tmp_path / "run.sqlite")
    assert main(["lines", str(run), "--own", "train.py"]) == 3
    assert "holds no Python stacks" in capsys.readouterr().err


def test_ranks_with_own_that_names_no_file(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(captures / "fsdp_inference_2xh100.sqlite")
    assert main(["ranks", run, "--own", "/nosuch", "--jobs", "1"]) == 2
    assert "--own /nosuch: no line of the recordings is there" in capsys.readouterr().err
