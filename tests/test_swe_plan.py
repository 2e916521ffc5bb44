"""What a command of the runner means."""

from pathlib import Path

import pytest

from evaluation.swe.plan import Plan, parse


@pytest.mark.parametrize(("extra", "kept"), [([], True), (["--drop-reasoning"], False)])
def test_thinking_is_kept_as_in_training_unless_it_is_dropped(
    tmp_path: Path, extra: list[str], kept: bool
) -> None:
    options = ["--row", "r", "--endpoint", "http://127.0.0.1:1/v1", "--benchmark", "swe_tiny"]
    plan = Plan.of(parse([*options, "--results", str(tmp_path), *extra]))
    assert plan.spec["protocol"]["keep_reasoning"] is kept
