"""A row of software engineering that is trained in seconds, in a copy of the experiments folder."""

import shutil
from pathlib import Path

import pytest
import yaml

from sao import config_files


def experiments_with_short_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy, in use; row `short` is `sao_swe` with one critic-only step and no pretrained critic."""
    copy = tmp_path / "experiments"
    shutil.copytree(config_files.EXPERIMENTS, copy)
    monkeypatch.setattr(config_files, "EXPERIMENTS", copy)
    row = yaml.safe_load((copy / "rows/sao_swe.yaml").read_text())
    row |= {"title": "short", "critic": {"pretrained": False, "critic_only_steps": 1}}
    (copy / "rows/short.yaml").write_text(yaml.safe_dump(row))
    return copy
