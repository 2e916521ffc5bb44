"""The pins of one tested environment agree wherever they are written."""

import os
import subprocess
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sao

ROOT = Path(__file__).parents[1]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def installed(extras: dict[str, list[str]]) -> list[str]:
    """Requirements of the extras that the Makefile installs with the pins."""
    return [text for name in ("train", "math", "importers", "dev") for text in extras[name]]


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = constraints()
    for text in project["dependencies"] + installed(extras):
        requirement = Requirement(text)
        assert requirement.specifier, f"{text} has no tested range"
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text


def test_analysis_needs_no_more_than_the_package() -> None:
    """`pip install .[analysis]` is a command that works, and installs the base dependencies alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["analysis"] == []
    base = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert base.isdisjoint({"torch", "transformers", "openai"})


def test_pins_name_public_versions() -> None:
    assert not [name for name, version in constraints().items() if "+" in version]


def test_conda_environment_has_the_same_pins() -> None:
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = [Requirement(text) for text in content["dependencies"][-1]["pip"]]
    pins = constraints()
    for requirement in listed:
        assert str(requirement.specifier) == f"=={pins[canonicalize_name(requirement.name)]}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = project["dependencies"] + installed(extras)
    names = {canonicalize_name(Requirement(text).name) for text in direct}
    assert {canonicalize_name(requirement.name) for requirement in listed} == names


def test_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == sao.__version__


def test_results_are_ignored_but_for_published_and_logged_ones() -> None:
    def ignored(path: str) -> bool:
        command = ["git", "check-ignore", "--quiet", "--no-index", path]
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0

    assert ignored("results/cpu/runs/sao/seed0/seal.json")
    assert not ignored("results/published/paper.csv")
    assert not ignored("results/logged/cpu/runs/sao/seed0/metrics.jsonl.gz")


def test_ci_entry_can_be_executed() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
