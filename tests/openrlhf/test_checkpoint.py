"""Checkpoints: the controller's part, and writes that fail."""

import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import Actors
from local_engine import run_config
from test_parity import row_config, starting_point

from sao.advantages import RunningMean
from sao.environments import make_environment
from sao.openrlhf import checkpoint
from sao.openrlhf.checkpoint import disk_errors, load_controller, save_controller
from sao.wall_clock_stream import Stream


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """A function that keeps the files of this process from growing beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_controllers_part_comes_back_as_it_was(tmp_path: Path) -> None:
    run = run_config("running_mean", scale="openrlhf_smoke")
    stream = Stream(run, make_environment(run.task).instances("train"), clock=lambda: 0)
    requests = stream.start_requests()
    running_mean = RunningMean(8, per_prompt=True)
    for reward in (1.0, 0.0, 1.0):
        running_mean.update("prompt", reward)
    totals = {"wall_seconds": 1.5, "cpu_seconds": 2.5, "sampler_tokens": 7}
    save_controller(tmp_path, stream.state_dict(), running_mean.state_dict(), totals)
    saved, mean, restored_totals = load_controller(tmp_path)
    assert restored_totals == totals
    restored = RunningMean(8, per_prompt=True)
    restored.load_state_dict(mean)
    assert restored.baseline("prompt") == running_mean.baseline("prompt") == pytest.approx(2 / 3)
    again = Stream(run, make_environment(run.task).instances("train"), clock=lambda: 0)
    again.load_state_dict(saved)
    again.begin(3)
    prompts = [(request.instance.prompt_id, request.group_id) for request in again.start_requests()]
    assert prompts == [(request.instance.prompt_id, request.group_id) for request in requests]
    assert again.version == 3


def test_a_failed_write_of_a_rank_is_an_error_of_the_disk(
    tmp_path: Path, file_limit: Callable[[int], None]
) -> None:
    starting_point(tmp_path)
    actors = Actors(row_config("sao"), tmp_path)
    (tmp_path / "checkpoint").mkdir()
    file_limit(4096)
    for actor in (actors.policy, actors.critic):
        with pytest.raises(OSError, match="checkpoint"):
            actor.save_state(tmp_path / "checkpoint")


def test_a_full_disk_is_told_from_other_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 0})
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(OSError) as raised, disk_errors(tmp_path):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="shapes differ"), disk_errors(tmp_path):
        raise RuntimeError("shapes differ")
