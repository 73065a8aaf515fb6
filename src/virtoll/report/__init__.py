"""From estimates to a page, tables and figures."""

from __future__ import annotations

from virtoll.report.build import build_report, write_report
from virtoll.report.findings import Findings, answer, find
from virtoll.report.running import RunningRow, running_table

__all__ = ["Findings", "RunningRow", "answer", "build_report", "find", "running_table", "write_report"]
