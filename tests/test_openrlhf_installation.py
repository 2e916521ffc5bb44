"""What a user is told where OpenRLHF is missing, of another version, or not as released."""

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from sao import openrlhf, train


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
