"""What a user is told where OpenRLHF is missing, of another version, or not as released."""

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from sao import openrlhf, train
from sao.openrlhf import rows


def version(found: str | None) -> object:
    original = metadata.version

    def answer(name: str) -> str:
        if name != "openrlhf":
            return original(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    return answer


@pytest.mark.parametrize(
    ("found", "message"),
    [(None, "openrlhf is not installed"), ("0.10.2", "openrlhf 0.10.2 is installed")],
)
def test_training_without_the_release_ends_with_one_message(
    found: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(openrlhf.metadata, "version", version(found))
    options = ["--row", "sao", "--scale", "openrlhf_smoke", "--results", str(tmp_path)]
    assert train.main(options) == 2
    error = capsys.readouterr().err
    assert message in error and "0.11.2" in error and error.count("\n") == 1


def test_a_replaced_name_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openrlhf.metadata, "version", version("0.11.2"))
    monkeypatch.setattr(openrlhf, "REPLACED", {"some_module": ("there", "gone")})
    module = ModuleType("some_module")
    module.there = 1
    monkeypatch.setitem(sys.modules, "some_module", module)
    with pytest.raises(openrlhf.InstallationError, match="some_module has no gone: this is not OpenRLHF"):
        openrlhf.check_installation()
    monkeypatch.setattr(openrlhf, "REPLACED", {"no_such_module_anywhere": ()})
    with pytest.raises(openrlhf.InstallationError, match="no_such_module_anywhere cannot be imported"):
        openrlhf.check_installation()


def test_the_command_for_all_rows_refuses_rows_and_scales_that_do_not_exist(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert rows.main(["--scale", "openrlhf_smok", "--results", str(tmp_path)]) == 2
    assert "did you mean openrlhf_smoke" in capsys.readouterr().err
    assert rows.main(["--scale", "openrlhf_smoke", "vap", "--results", str(tmp_path)]) == 2
    assert "did you mean vapo" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_for_all_rows_counts_those_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prepared: list[list[str]] = []
    monkeypatch.setattr(rows.prepare, "main", lambda words: prepared.append(words) or 0)
    monkeypatch.setattr(rows.train, "main", lambda words: int("vapo" in words))
    options = ["--scale", "openrlhf_smoke", "--results", str(tmp_path)]
    assert rows.main(["grpo_dis", "vapo", *options]) == 1
    assert "1 of 2 rows ran; failed: vapo" in capsys.readouterr().out
    assert [words[0] for words in prepared] == ["warm-start", "warm-start", "values"]
    assert rows.main(["grpo_dis", *options]) == 0
