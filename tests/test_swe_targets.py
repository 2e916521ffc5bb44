"""What the workflow's switches become for SWE-Bench, and the messages of a wrong environment."""

import importlib.util
from pathlib import Path

import pytest

from evaluation.swe import runner
from evaluation.swe.targets import evaluation_seals, grading_options, playing_options, python_command
from evaluation.swe.versions import VersionError, require
from sao.config import load_scale


def test_switches_are_quoted_for_a_shell() -> None:
    switches = {"endpoint": "http://a b/v1", "model": "m", "swe": "--workspace local --image 'x {instance}'"}
    assert playing_options(switches) == (
        "--endpoint 'http://a b/v1' --model m --workspace local --image 'x {instance}'"
    )
    assert grading_options({"swe_grading": "--backend bubblewrap"}) == "--backend bubblewrap"
    assert playing_options({}) == grading_options({}) == ""
    assert python_command({"openhands_python": "/a b/python"}) == "'/a b/python'"


def test_scale_without_software_engineering_shows_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "evaluations/trial/seed0/step0"
    for name in ("swe_tiny", "aime_2025"):
        (folder / name).mkdir(parents=True)
        (folder / name / "spec.json").touch()
    seals = evaluation_seals(load_scale("smoke"), str(tmp_path), ["sao"], [0])
    assert seals == [f"{folder}/swe_tiny/seal.json"]


def test_other_releases_are_named_with_the_mend() -> None:
    with pytest.raises(VersionError, match=r"pytest .* where 0\.0 is needed.*make openhands-environment"):
        require({"pytest": "0.0"})


@pytest.mark.skipif(importlib.util.find_spec("openhands") is not None, reason="is about its absence")
def test_main_environment_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--row", "trial", "--endpoint", "http://127.0.0.1:9/v1"]) == 2
    assert "openhands-sdk not installed where 1.58.2 is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--row a/b --endpoint u", "names a folder"),
        ("--row a", "--endpoint"),
        ("--row a --endpoint u --max-turns 0", "no whole number from 1 on"),
    ],
)
def test_bad_options(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runner.main(words.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
