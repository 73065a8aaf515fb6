"""What `make test` leaves to `make test-long`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from long import LONG, is_long


@pytest.mark.parametrize("entry", sorted(LONG))
def test_each_names_a_test_that_there_is(entry: str) -> None:
    file, _, test = entry.partition("[")[0].partition("::")
    (path,) = Path(__file__).parent.glob(f"**/test_{file}.py")
    functions = {each.name for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)}
    assert not test or test in functions
    assert is_long(f"tests/{path.name}::{test or 'test_it'}[{entry.partition('[')[2] or 'case]'}")


def test_only_a_case_that_is_named_is_long() -> None:
    file = "tests/test_platforms_containers.py"
    assert is_long(f"{file}::test_limits_hold[docker-unconfined]")
    assert not is_long(f"{file}::test_limits_hold[docker]")
    assert not is_long(f"{file}::test_limits_hold")
    assert not is_long("tests/test_long.py::test_only_a_case_that_is_named_is_long")
