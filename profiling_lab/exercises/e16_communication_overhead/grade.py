# SPDX-License-Identifier: Apache-2.0
"""Grade E16. The right answers are computed from the learner's own links and recordings, the prediction from
a second run.
"""

from __future__ import annotations

from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.exercises import job_repair, ncu_questions
from profiling_lab.exercises.answers import Answers, is_near
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e16_communication_overhead.samples import CommunicationFacts, communication_facts
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.job_repair import JobGoal
from profiling_lab.exercises.ncu_questions import Name, Number, Question

ENTRY = entry("communication-overhead")
PROGRAM, BENCHMARK = "train.py", "communication_benchmark.py"
RECORDED, SECOND = "recorded/starter_h200.json", "recorded/solution_h200.json"
BUCKET_MIB = 64
GOAL = JobGoal(faster=1.04, steps=10)
PREDICTION_FRAC = 0.12
"""by how much a prediction may differ from the second run"""
SAME_FRAC = 0.03
"""by how much it must differ from the first one, if the second run does"""
PLANTED_EXPOSED_FRAC, PLANTED_MESSAGES = 0.12, 2
"""of the unchanged program: the least part of a step that is exposed, and the most all-reduces"""
CAUSES = (
    "nothing is left to hide it",
    "messages are too small",
    "a slow link",
    "a rank comes late",
)

LINK_QUESTIONS = (
    Number("links.latency_us", lambda facts: facts.fit.latency_ns / 1e3,
           "latency of the fit for AllReduce on all ranks, in us, as `profiling-lab interconnect` prints it"),
    Number("links.bandwidth_gb_s", lambda facts: facts.fit.bus_bytes_per_s / 1e9,
           "bus bandwidth of that fit, in GB/s"),
    Number("links.transfer_ms", lambda facts: facts.fit.time_ns(sum(facts.messages)) / 1e6,
           "latency + bus bytes / bus bandwidth for all gradients of a step in one message, in ms; "
           "bus bytes of an all-reduce are 2 (n - 1) / n of the message", slack_frac=0.05),
)  # fmt: skip
STEP_QUESTIONS = (
    Number("step.reduced_mib", lambda facts: facts.reduced_mib,
           "MiB of gradients that a step reduces: the messages of one rank in one step", slack_frac=0.01),
    Number("step.exposed_ms", lambda facts: facts.exposed_ms,
           "exposed comm. of a step, as `profiling-lab ranks` prints it, in ms; the mean of the ranks",
           slack_frac=0.05),
    Number("step.reached_percent", lambda facts: facts.reached_percent,
           "`of links` in the row AllReduce of `collectives --by kind --links`", slack_frac=0.0, slack=2.0),
    Name("step.cause", lambda facts: {CAUSES[0]},
         "do ranks wait for each other, do the links reach less than they can, and what runs meanwhile?",
         choices=CAUSES),
)  # fmt: skip
NCCL_QUESTIONS = (
    Name("nccl.protocol", lambda facts: {facts.choice.protocol},
         "what NCCL says of the all-reduce of the gradients; the kernel's name does not tell",
         choices=("LL", "LL128", "SIMPLE")),
    Number("nccl.channels", lambda facts: facts.choice.channels,
           "how many channels that all-reduce uses: one thread block each", slack_frac=0.0, slack=0.5),
)  # fmt: skip
QUESTIONS: tuple[Question, ...] = (*LINK_QUESTIONS, *STEP_QUESTIONS, *NCCL_QUESTIONS)


def opened(path: Path) -> CommunicationFacts:
    """The run of the unchanged program. Raises LabError."""
    facts = communication_facts(path)
    exposed = facts.exposed_ms / facts.step_ms
    if exposed < PLANTED_EXPOSED_FRAC or len(facts.messages) > PLANTED_MESSAGES:
        raise LabError(
            f"{path.name} does not show the problem: {len(facts.messages)} all-reduces a step, "
            f"{100 * exposed:.0f} % of it exposed; record the unchanged {PROGRAM}"
        )
    return facts


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", one for each question, "prediction" and "explanation"."""
    given = answers.text("trace")
    path = workspace / given if given else ENTRY.folder / RECORDED
    try:
        if not given and not path.is_file():
            raise LabError(
                f"{answers.source} names no run (trace = ...), and none came with the exercise: "
                "`profiling-lab exercise profile` makes one"
            )
        facts = opened(path)
        checks = [_graded(question, facts, answers) for question in QUESTIONS]
    except LabError as error:
        reason = "there is no usable run to check it against"
        names = [*(each.key for each in QUESTIONS), "prediction"]
        return [
            failed("recording", str(error)),
            *(not_checked(name, reason) for name in names),
            explanation(answers),
        ]
    ours = ENTRY.folder / RECORDED
    is_ours = ours.is_file() and ours.read_bytes() == path.read_bytes()
    return [
        passed("recording", "the one that came with the exercise" if is_ours else "your own"),
        *checks,
        _prediction(workspace, answers, facts, is_ours),
        explanation(answers),
    ]


def _graded(question: Question, facts: CommunicationFacts, answers: Answers) -> GradedCheck:
    if question in NCCL_QUESTIONS:
        choice = facts.choice
        asks_channels = question is NCCL_QUESTIONS[1]
        if choice is None or (asks_channels and choice.channels is None):
            return not_checked(question.key, "the text of this NCCL does not say it")
    return ncu_questions.graded(question, facts, answers)


def _prediction(workspace: Path, answers: Answers, first: CommunicationFacts, is_ours: bool) -> GradedCheck:
    given = answers.number("prediction.step_ms")
    if given is None:
        return failed("prediction", f"not answered yet: the step in ms with buckets of {BUCKET_MIB} MB")
    named = answers.text("prediction.second")
    if named is None and not is_ours:
        command = f"python {BENCHMARK} --bucket-mb {BUCKET_MIB} -o second.json"
        return not_checked("prediction", f"no second run in [prediction] second: {command}")
    try:
        second = communication_facts(workspace / named if named else ENTRY.folder / SECOND)
    except LabError as error:
        return failed("prediction", str(error))
    if wrong := _unlike(first, second):
        return failed("prediction", wrong)
    off = f"{100 * abs(given / second.step_ms - 1):.0f} %"
    as_before = is_near(given, first.step_ms, 0.0, SAME_FRAC)
    if as_before and not is_near(second.step_ms, first.step_ms, 0.0, SAME_FRAC):
        return failed("prediction", "that is the step as it is: what would no longer be exposed?")
    if is_near(given, second.step_ms, 0.0, PREDICTION_FRAC):
        return passed("prediction", f"{given:g} ms, {off} off the second run's {second.step_ms:.2f} ms")
    return failed(
        "prediction", f"{off} off the second run; at most {100 * PREDICTION_FRAC:g} % are a prediction"
    )


def _unlike(first: CommunicationFacts, second: CommunicationFacts) -> str:
    """Why the second run says nothing about the prediction; empty if it does."""
    if (first.gpu, first.ranks) != (second.gpu, second.ranks):
        return "the two runs are of different GPUs, or of different numbers of them"
    if abs(sum(second.messages) / sum(first.messages) - 1) > 0.01:
        return "the second run reduces other gradients: only the size of the buckets may change"
    if max(second.messages) > 1.5 * BUCKET_MIB * (1 << 20):
        largest = max(second.messages) / (1 << 20)
        return f"the second run has messages of {largest:.0f} MiB, expected buckets of {BUCKET_MIB} MB"
    return ""


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    """The checks "result" and "speed"."""
    return job_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, GOAL)


def _changed(old: str, new: str) -> dict[str, str]:
    """The solution with a change, as the text of train.py."""
    text = (ENTRY.folder / "solutions" / PROGRAM).read_text(encoding="utf-8")
    assert old in text
    return {PROGRAM: text.replace(old, new, 1)}


FORWARD = "        loss = F.mse_loss"
NOT_SYNCHRONISED = f"        job.parallel.require_backward_grad_sync = len(losses) % 2 == 0\n{FORWARD}"
WHERE, LAYERS = "if dist.is_initialized():\n            self", "bias=False)"
WRONG_PROGRAMS = (
    ("gradients are not shared", _changed(WHERE, "if False:\n            self"), "differs by"),
    ("gradients are shared in every second step only",
     _changed(FORWARD, NOT_SYNCHRONISED), "differs by"),
    ("the first layer is not trained",
     _changed(LAYERS, f"{LAYERS}.requires_grad_(_ > 0)"), "is missing or new"),
    ("the loss of one rank",
     _changed("dist.all_reduce(losses)", "losses *= dist.get_world_size()"), "the return value"),
    ("no optimizer", _changed("        job.optimizer.step()\n", ""), "differs by"),
)  # fmt: skip
"""repairs that compute something else: why, the files, and what the hint says"""

EXERCISE = Exercise(
    entry=ENTRY,
    question="What does communication cost in this step, and what would another bucket size cost?",
    starter=("README.md", PROGRAM, BENCHMARK, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(BENCHMARK,),
    recording=RECORDED,
    rules=("exposed_allreduce", "communication"),
    mistakes=(
        Mistake("the latency in ms", {"links.latency_us": 0.02}, "links.latency_us"),
        Mistake("GB/s of the data sheet", {"links.bandwidth_gb_s": 900.0}, "links.bandwidth_gb_s"),
        Mistake("one layer", {"links.transfer_ms": 0.2}, "links.transfer_ms"),
        Mistake("one layer's gradients", {"step.reduced_mib": 64.0}, "step.reduced_mib"),
        Mistake("all communication of the recording", {"step.exposed_ms": 55.5}, "step.exposed_ms"),
        Mistake("a fraction", {"step.reached_percent": 0.97}, "step.reached_percent"),
        Mistake("the link", {"step.cause": "a slow link"}, "step.cause"),
        Mistake("the kernel's name", {"nccl.protocol": "LL"}, "nccl.protocol"),
        Mistake("all SMs", {"nccl.channels": 132}, "nccl.channels"),
        Mistake("communication added, not taken away", {"prediction.step_ms": 25.0}, "prediction"),
        Mistake("the transfer alone", {"prediction.step_ms": 2.4}, "prediction"),
        Mistake("the step as it is", {"prediction.step_ms": 11.9}, "prediction"),
        Mistake("all communication hidden, at no cost", {"prediction.step_ms": 8.44}, "prediction"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
        *(Mistake(why, {}, "result", files) for why, files, _ in WRONG_PROGRAMS[:2]),
    ),
    writes="communication.json",
    look=f"python {BENCHMARK} --show",
)


def right_answers(facts: CommunicationFacts) -> dict[str, object]:
    """Of all questions but the prediction."""
    found: dict[str, object] = {}
    for question in QUESTIONS:
        if question in NCCL_QUESTIONS and facts.choice is None:
            continue
        if isinstance(question, Number):
            found[question.key] = float(f"{question.right(facts):.4g}")
        else:
            found[question.key] = next(iter(question.right(facts)))
    return found
