# SPDX-License-Identifier: Apache-2.0
"""The checks as a table: one row each, with advice below it."""

from __future__ import annotations

from profiling_lab.doctor import summary
from profiling_lab.doctor.check import HealthCheck
from profiling_lab.report.table import Column, Report, Table


def doctor_report(checks: tuple[HealthCheck, ...]) -> Report:
    conclusion = summary(checks)
    rows: list[tuple[str, ...]] = []
    for check in checks:
        rows.append((check.name, check.status.value, check.found))
        if check.advice:
            rows.append(("", "", f"-> {check.advice}"))
    table = Table(
        columns=(Column("name", "what"), Column("status", "status"), Column("found", "found")),
        rows=tuple(rows),
        total_matched=len(rows),
        data=tuple(
            {"name": c.name, "status": c.status.value, "found": c.found, "advice": c.advice} for c in checks
        ),
    )
    return Report(
        command="doctor",
        trace={},
        header=(conclusion.sentence,),
        table=table,
        coverage={"verdict": conclusion.sentence, "exit_code": conclusion.exit_code},
    )
