# SPDX-License-Identifier: Apache-2.0
"""E33 to E35: findings are judged from the files at hand, repairs by what they compute, and each planted
defect is in the compiled code.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from exercises.attention_files import MADE, REPAIRED, made_report, made_trace

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.kernels.occupancy import theoretical
from profiling_lab.analysis.ncu.consistency import THEORETICAL
from profiling_lab.analysis.ncu.report import function_name
from profiling_lab.analysis.ncu.report import read as read_report
from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import attention_kernels, cuda_build, find, kernel_repair, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.answers import read as read_answers
from profiling_lab.exercises.attention_kernels import Files, KernelExercise, right_answers, usable
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Mistake, Need
from profiling_lab.trace import Trace

EXERCISES = [find(slug) for slug in MADE]
every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.slug)
SOURCE = attention_kernels.SOURCE


def answers(exercise: KernelExercise, folder: Path) -> Answers:
    """The right answers to the files in `folder`."""
    files = usable(exercise.parts, folder / "run.sqlite", folder / "report.csv")
    assert isinstance(files, Files), files
    right = right_answers(exercise.parts, exercise.folder / SOURCE, files)
    about = {"exercise": exercise.slug, "trace": "run.sqlite", "report": "report.csv"}
    return Answers({**about, **right, "fix.cause": "I saw it", "fix.change": "I changed it"})


def checks(exercise: KernelExercise, folder: Path, given: Answers) -> dict[str, GradedCheck]:
    return {check.name: check for check in exercise.findings(folder, given)}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def make(exercise: KernelExercise, slower: float = 1.0) -> Path:
        made_trace(exercise.slug, tmp_path / "run.sqlite", slower=slower)
        made_report(exercise.slug, tmp_path / "report.csv")
        return tmp_path

    return make


@every_exercise
def test_what_a_learner_reads_from_both_files_is_right(
    exercise: KernelExercise, folder: Callable[..., Path]
) -> None:
    made = folder(exercise)
    found = checks(exercise, made, answers(exercise, made))
    assert {check.status for check in found.values()} == {CheckStatus.PASSED}, found
    assert found["recording"].message == found["report"].message == "your own"


def test_the_right_answers_are_those_of_the_files(folder: Callable[..., Path]) -> None:
    right = answers(find("long-kernel"), folder(find("long-kernel"))).values
    assert right["attend.share"] == 66.7 and right["attend.blocks"] == 32 and right["attend.busy"] == 24
    assert right["entropy.reductions"] == 65536 and right["pages.instructions"] == 4e6
    lines = (find("long-kernel").folder / SOURCE).read_text().splitlines()
    assert "malloc" in lines[int(str(right["pages.line"])) - 1]


@pytest.mark.parametrize(
    ("exercise", "mistake"),
    [pytest.param(e, m, id=f"{e.slug}: {m.why}") for e in EXERCISES for m in e.mistakes if not m.files],
)
def test_wrong_answers_are_rejected(
    exercise: KernelExercise, mistake: Mistake, folder: Callable[..., Path]
) -> None:
    made = folder(exercise)
    found = checks(exercise, made, answers(exercise, made).replaced(mistake.answer))
    assert {name for name, check in found.items() if check.status is CheckStatus.FAILED} == {
        mistake.rejected_by
    }


@every_exercise
def test_answers_from_other_files_are_rejected(exercise: KernelExercise, tmp_path: Path) -> None:
    """Copied from the recording and the report that came with it: the learner's GPU gave other numbers."""
    planted = exercise.parts[0]
    copied = tmp_path / "copied"
    copied.mkdir()
    made_trace(exercise.slug, copied / "run.sqlite")
    made_report(exercise.slug, copied / "report.csv")
    key = {"low-memory-throughput": "dram__throughput", "low-occupancy": "sm__warps_active.avg"}.get(
        exercise.slug, "sm__cycles_active"
    )
    changed = {"dram__throughput": 40.0, "sm__warps_active.avg": 8.0, "sm__cycles_active": 5e5}[key]
    made_trace(exercise.slug, tmp_path / "run.sqlite", slower=0.8)
    if key == "dram__throughput":
        made_report(exercise.slug, tmp_path / "report.csv", **{f"{key}.avg": changed})
    else:
        made_report(exercise.slug, tmp_path / "report.csv", **{key: changed})
    found = checks(exercise, tmp_path, answers(exercise, copied))
    failed = {name for name, check in found.items() if check.status is CheckStatus.FAILED}
    assert failed, planted
    assert any(name.split()[-1] in ("dram", "achieved", "busy") for name in failed)


@every_exercise
def test_files_of_the_repaired_program_are_refused(
    exercise: KernelExercise, folder: Callable[..., Path]
) -> None:
    made = folder(exercise)
    given = answers(exercise, made)
    made_report(exercise.slug, made / "report.csv", REPAIRED[exercise.slug])
    found = checks(exercise, made, given)
    assert found["report"].status is CheckStatus.FAILED and found["finding"].status is CheckStatus.NOT_CHECKED
    made_trace(exercise.slug, made / "run.sqlite", REPAIRED[exercise.slug])
    found = checks(exercise, made, given)
    assert "recording" in found or "report" in found
    assert CheckStatus.PASSED not in {check.status for check in found.values()}


@every_exercise
def test_a_report_of_another_launch_is_refused(exercise: KernelExercise, folder: Callable[..., Path]) -> None:
    made = folder(exercise)
    given = answers(exercise, made)
    text = (made / "report.csv").read_text()
    (made / "report.csv").write_text(text.replace("(256, 1, 1)", "(128, 1, 1)"))
    found = checks(exercise, made, given)
    assert found["report"].status is CheckStatus.FAILED
    assert re.search("another grid or block|contradict", found["report"].message)
    (made / "report.csv").write_text("no table")
    assert checks(exercise, made, given)["report"].status is CheckStatus.FAILED
    (made / "run.sqlite").write_text("no database")
    assert "exercise profile" in checks(exercise, made, given)["recording"].message


# The planted defects, after compilation


def ptxas(source: Path, folder: Path) -> str:
    if Need.NVCC.missing():
        pytest.skip("nvcc is not on the PATH")
    command = ["nvcc", "-O3", "-arch=sm_90", "--ptxas-options=-v", "-Xcompiler", "-fPIC", "-shared"]
    done = subprocess.run(
        [*command, "--keep", "--keep-dir", str(folder), "-o", str(folder / "x.so"), str(source)],
        capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def ptx_of(folder: Path, kernel: str) -> str:
    text = next(folder.glob("*.ptx")).read_text()
    begin = re.search(rf"\.entry \w*{kernel}\w*\(", text)
    assert begin is not None
    return text[begin.start() : text.index("\n}", begin.start())]


@pytest.mark.parametrize("is_solved", [False, True], ids=["starter", "solution"])
def test_loads_are_uncoalesced_in_the_compiled_kernel(is_solved: bool, tmp_path: Path) -> None:
    """The starter loads 4 bytes at a time from addresses a whole key apart, the solution 16."""
    folder = find("low-memory-throughput").folder
    ptxas((folder / workspace.SOLUTIONS if is_solved else folder) / SOURCE, tmp_path)
    kernel = ptx_of(tmp_path, "scores_kernel")
    wide = len(re.findall(r"ld\.global(?:\.nc)?\.v4\.(?:f32|b32|u32)", kernel))
    narrow = len(re.findall(r"ld\.global(?:\.nc)?\.(?:f32|b32|u32)", kernel))
    assert (wide >= 4 and narrow == 0) if is_solved else (wide == 0 and narrow > 4)


def test_shared_memory_limits_the_occupancy_and_nothing_else_does(tmp_path: Path) -> None:
    folder = find("low-occupancy").folder
    registers = int(re.findall(r"Used (\d+) registers", ptxas(folder / SOURCE, tmp_path))[-1])
    assert 65536 // (registers * 256) >= 4, "registers alone would allow half of the warps"
    keys = int(re.search(r"KEYS, DIM = 64 \* 16, 4, (\d+)", (folder / "run.py").read_text())[1])  # type: ignore[index]
    shared = (256 + keys) * 16
    assert 228 * 1024 // (shared + 1024) == 1, "one block on an SM of a H200"
    report = ptxas(folder / workspace.SOLUTIONS / SOURCE, tmp_path)
    assert max(map(int, re.findall(r"(\d+) bytes smem", report))) < 6000


def test_atomics_and_allocations_survive_the_compiler(tmp_path: Path) -> None:
    folder = find("long-kernel").folder
    ptxas(folder / SOURCE, tmp_path)
    assert "malloc" in ptx_of(tmp_path, "pages_kernel") and "free" in ptx_of(tmp_path, "pages_kernel")
    entropy = ptx_of(tmp_path, "entropy_kernel")
    assert re.search(r"(red|atom)\.global\.add\.f32", entropy) and "shfl" not in entropy
    ptxas(folder / workspace.SOLUTIONS / SOURCE, tmp_path)
    assert "malloc" not in ptx_of(tmp_path, "pages_kernel") and "shfl" in ptx_of(tmp_path, "entropy_kernel")


# Repairs


needs_compiler = pytest.mark.skipif(cuda_build.host_compiler() is None, reason="there is no C++ compiler")


def judged(slug: str, text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / SOURCE).write_text(text)
    return {check.name: check for check in find(slug).repair(folder, Answers({}))}


def solved(slug: str, *changes: tuple[str, str]) -> str:
    text = (find(slug).folder / workspace.SOLUTIONS / SOURCE).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


LAST = "return cudaGetLastError();"
LOAD = "own[static_cast<size_t>(key) * kLanes + lane];"
ROUNDED = "k.x = rintf(k.x * 256) / 256;"
SOFTMAX = "  softmax_kernel<<<rows, kThreads>>>(work, count);\n"
PARTS = "parts = (count + length - 1) / length;"
ONCE = "static int calls = 0;\n  if (calls++ > 0) { return 0; }\n  "
BARRIER = "    if (group == 0) { __syncthreads(); }\n"
BAD_REPAIRS = {
    "low-memory-throughput": {
        "one key for all": ("min(first + i * kGroups + group, count - 1)", "0"),
        "the softmax deleted": (SOFTMAX, ""),
        "every second value": ("key += kThreads / kColumns", "key += 2 * kThreads / kColumns"),
        "nothing launched": ("const dim3 grid", "return 0;\n  const dim3 grid"),
        "the first result kept": ("const dim3 grid", ONCE + "const dim3 grid"),
        "half of the digits": (
            f"const float4 k = {LOAD}",
            f"float4 k = {LOAD} {ROUNDED}",
        ),
        "the keys changed": (LAST, "const_cast<float*>(keys)[0] += 1.0f;\n  " + LAST),
        "beyond the result": (LAST, "out[rows * kDim] = 0.0f;\n  " + LAST),
        "beyond the scratch memory": (LAST, "work[rows * count] = 0.0f;\n  " + LAST),
    },
    "low-occupancy": {
        "one query for all": ("q[(blockIdx.x * kQueries + i)", "q[(blockIdx.x * kQueries)"),
        "no rescaling": ("sum *= shrink;", ""),
        "the maximum forgotten": ("state[i].rescale(top);\n        }", "state[i].largest = top;\n        }"),
        "an error returned": (LAST, "return cudaErrorInvalidValue;"),
        "a barrier that not all reach": ("    state[i].rescale(top);\n    part", f"{BARRIER}    part"),
    },
    "long-kernel": {
        "one part of the keys": (PARTS, "parts = 1;"),
        "entropy left out": ("atomicAdd(&entropy[head], total);", ""),
        "entropy added from call to call": ("cudaMemsetAsync(entropy, 0, heads * sizeof(float));", ""),
        "half of a page": ("for (int step = 8; step > 0", "for (int step = 4; step > 0"),
    },
}


@needs_compiler
@pytest.mark.parametrize(
    ("slug", "change"),
    [
        pytest.param(slug, each, id=f"{slug}: {why}")
        for slug, bad in BAD_REPAIRS.items()
        for why, each in bad.items()
    ],
)
def test_a_repair_that_computes_something_else_is_rejected(
    slug: str, change: tuple[str, str], tmp_path: Path
) -> None:
    """In this process: a child for each would take longer than the judging."""
    (tmp_path / SOURCE).write_text(solved(slug, change))
    tasks = import_module(f"profiling_lab.exercises.{find(slug).folder.name}.repair").TASKS
    before, after = (
        kernel_repair.launchers(str(cuda_build.for_cpu(source, tmp_path / f"{name}.so")), tasks)
        for name, source in (("before", find(slug).folder / SOURCE), ("after", tmp_path / SOURCE))
    )
    result, speed = kernel_repair.judged(before, after, tasks, "cpu")
    assert result.status is CheckStatus.FAILED and speed.status is CheckStatus.NOT_CHECKED, result


@needs_compiler
@pytest.mark.usefixtures("warm_children")
@every_exercise
def test_the_solution_is_right(exercise: KernelExercise, tmp_path: Path) -> None:
    """On the CPU here, where there is no GPU."""
    found = judged(exercise.slug, solved(exercise.slug), tmp_path)
    assert found["result"].status is CheckStatus.PASSED, found
    assert found["speed"].status is (CheckStatus.NOT_CHECKED if Need.GPU.missing() else CheckStatus.PASSED)


@needs_compiler
@every_exercise
def test_what_is_no_repair_is_told(exercise: KernelExercise, tmp_path: Path) -> None:
    text = (exercise.folder / SOURCE).read_text()
    assert "unchanged" in judged(exercise.slug, text, tmp_path)["result"].message
    (tmp_path / SOURCE).unlink()
    assert "there is no attention.cu" in exercise.repair(tmp_path, Answers({}))[0].message
    found = judged(exercise.slug, "#include <mma.h>\n" + text, tmp_path)
    if Need.GPU.missing():  # what the stand-in does not know is no mistake
        assert found["result"].status is CheckStatus.NOT_CHECKED and "stand-in" in found["result"].message


@needs_compiler
def test_a_kernel_that_ends_its_process_does_not_end_the_check(tmp_path: Path) -> None:
    text = solved("low-occupancy", (LAST, "out[1 << 30] = 0.0f;\n  " + LAST))
    found = judged("low-occupancy", text, tmp_path)
    assert found["result"].status is CheckStatus.FAILED and "ended with status" in found["result"].message


@every_exercise
def test_commands_of_the_readme_work(
    exercise: KernelExercise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made_trace(exercise.slug, tmp_path / "run1.sqlite")
    text = (exercise.folder / "README.md").read_text()
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) >= 6
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if "run1.sqlite" in arguments:
            assert main(arguments) in (0, 1), f"{command}: {capsys.readouterr().err}"
    assert len(workspace.hints(exercise)) == 3
    causes = re.findall(r"^\| `([^`]+)` \|", text.partition("| cause |")[2], re.M)
    assert tuple(causes) == attention_kernels.CAUSES


@pytest.mark.gpu
@every_exercise
def test_make_builds_and_the_solution_reaches_the_goal(exercise: KernelExercise, tmp_path: Path) -> None:
    folder = workspace.start(exercise, tmp_path / "copy")
    subprocess.run(["make"], cwd=folder, check=True)
    subprocess.run(["python", "run.py", "--steps", "2"], cwd=folder, check=True)
    workspace.copy_solution(exercise, folder)
    found = exercise.repair(folder, Answers({}))
    assert {check.status for check in found} == {CheckStatus.PASSED}, found


def test_make_builds_without_a_gpu(tmp_path: Path) -> None:
    if Need.NVCC.missing() or shutil.which("make") is None:
        pytest.skip("nvcc or make is not on the PATH")
    folder = workspace.start(find("low-memory-throughput"), tmp_path / "copy")
    subprocess.run(["make"], cwd=folder, check=True, capture_output=True)
    assert (folder / "libattention.so").is_file()


def test_answer_files_name_what_is_graded() -> None:
    for exercise in EXERCISES:
        names = set(read_answers(exercise.folder).values)
        for part in exercise.parts:
            keys = ("kernel", "share", "cause", "line", *(number.key for number in part.numbers))
            assert {f"{part.section}.{key}" for key in keys} <= names, json.dumps(sorted(names))


# The recordings


def recorded(exercise: KernelExercise, side: str, kind: str) -> Path:
    path = exercise.folder / workspace.RECORDED / f"{side}_h200.{kind}"
    if not path.is_file():
        pytest.skip("not recorded yet: tools/record_attention_exercises.py does it on a GPU")
    return path


@every_exercise
def test_recorded_starter_shows_the_problem_and_recorded_solution_does_not(exercise: KernelExercise) -> None:
    starter = usable(
        exercise.parts, recorded(exercise, "starter", "sqlite"), recorded(exercise, "starter", "csv")
    )
    assert isinstance(starter, Files), starter
    solution = usable(
        exercise.parts, recorded(exercise, "solution", "sqlite"), recorded(exercise, "solution", "csv")
    )
    assert not isinstance(solution, Files) and "does not show the problem" in solution[1]


@pytest.mark.parametrize("side", ["starter", "solution"])
@pytest.mark.parametrize("slug", MADE)
def test_our_estimate_of_the_occupancy_is_that_of_ncu(slug: str, side: str) -> None:
    exercise = find(slug)
    report = read_report(recorded(exercise, side, "csv"))
    with Trace.open(recorded(exercise, side, "sqlite")) as trace:
        rows = {function_name(row.name): row for row in top_kernels(trace, shapes=True, lines=False).rows}
        (device,) = trace.devices.values()
    for launch in report.launches:
        shape = rows[launch.function].shape
        assert shape is not None
        ours = theoretical(device, shape.usual)
        assert ours is not None and 100 * ours[0] == pytest.approx(launch.value(THEORETICAL), abs=0.1)
