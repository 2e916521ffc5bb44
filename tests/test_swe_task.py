"""Software engineering as a task of a backend: pools, workers, and what is looked for before all else."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from math_standins import tokenizer
from test_swe_proxy import ScriptedEngine, action

from evaluation.swe import environment as swe
from evaluation.swe import machine
from evaluation.swe.contamination import check_command, record_of
from evaluation.swe.datasets import write_rows
from evaluation.swe.training import ScaffoldSettings
from sao import train
from sao.config import ConfigError, load_scale, resolve
from sao.config_tasks import SWETask, TinySWETask
from sao.environments import make_environment
from sao.environments.base import EnvironmentFailure

TINY: TinySWETask = load_scale("openrlhf_smoke_swe").task("swe_tiny")  # type: ignore[assignment]
PAPER: SWETask = load_scale("paper_swe").task("swe")  # type: ignore[assignment]
WORKER = '''\
"""Asks the model once as an agent does, with the files of the task's image, and says that it is resolved."""
import json, os, sys, urllib.request
settings = json.loads(sys.argv[3])
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    address, row = asked["address"], asked["row"]
    image = os.path.join(settings["images"], row["image"].replace("/", "__").replace(":", "__"), "testbed")
    question = {"role": "user", "content": " ".join(sorted(os.listdir(image)))}
    tools = [{"type": "function", "function": {"name": "finish", "parameters": {"type": "object"}}}]
    body = json.dumps({"model": address["model"], "messages": [question], "tools": tools}).encode()
    headers = {"authorization": "Bearer " + address["key"], "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address["url"] + "/chat/completions", body, headers)):
        pass
    answer = {"ending": "finish", "turns": int(settings["max_turns"]), "outcome": "resolved", "reasons": []}
    print(json.dumps(answer | {"seconds": 0.5}), flush=True)
'''


def program(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[swe.ScaffoldEnvironment]:
    """The tiny environment with two workers that play a part."""
    python = program(tmp_path, "python", f"#!{sys.executable}\n{WORKER}")
    monkeypatch.setenv(machine.PYTHON_VARIABLE, str(python))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    swe.tiny_environment.cache_clear()
    environment = swe.tiny_environment(TINY)
    environment.open(workers=2, max_tokens=300)
    yield environment
    environment.close()
    swe.tiny_environment.cache_clear()
    assert [file.name for file in tmp_path.iterdir()] == ["python"]


def test_five_tiny_tasks_of_which_one_is_held_out() -> None:
    environment = make_environment(TINY)
    train, held_out = environment.instances("train"), environment.instances("held_out")
    assert len(train) == 4 and len(held_out) == 1
    assert held_out[0].prompt_id == min(instance.prompt_id for instance in train + held_out)
    assert environment.max_episode_tokens == 2048
    assert len(environment.vocabulary) == len(environment.tokenizer)
    assert pickle.loads(pickle.dumps(environment)) is environment  # one in a process


def test_it_has_no_workers_before_it_is_opened() -> None:
    environment = make_environment(TINY)
    with pytest.raises(RuntimeError, match="open it first"):
        environment.rollout(environment.instances("train")[0], engine=ScriptedEngine())  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="is run as a whole"):
        environment.start(environment.instances("train")[0], 0.0)


def test_workers_ask_the_proxy_and_find_the_tasks_files(opened: swe.ScaffoldEnvironment) -> None:
    [folder] = [file for file in opened.scaffold.folder.parent.iterdir() if file.is_dir()]  # type: ignore[union-attr]
    assert sorted(file.name for file in folder.iterdir() if file.name.isdecimal()) == ["0", "1"]
    instance = opened.instances("held_out")[0]
    ids = opened.tokenizer.encode("</think><tool_call>", add_special_tokens=False)
    engine = ScriptedEngine(action("finish"))
    engine.answers = [_completion([*ids, *opened.tokenizer.encode("<|im_end|>", add_special_tokens=False)])]
    made = opened.rollout(instance, index=3, engine=engine)
    assert (made.reward, made.status, made.turns, made.index) == (1.0, "completed", 1, 3)
    assert opened.counts == {"finish": 1, "resolved": 1}
    opened.open(workers=5, max_tokens=300)  # it is open already
    assert sorted(file.name for file in folder.iterdir() if file.name.isdecimal()) == ["0", "1"]


def _completion(ids: list[int]) -> Any:
    from evaluation.endpoint import Completion

    return Completion(ids, [-0.5] * len(ids), "stop", [0] * len(ids))


def test_the_tokens_of_a_trajectory_are_limited_by_task_and_run(opened: swe.ScaffoldEnvironment) -> None:
    assert opened.proxy.max_tokens == 300 < TINY.max_tokens


def test_a_closed_environment_fails_its_attempts(opened: swe.ScaffoldEnvironment) -> None:
    scaffold = opened.scaffold
    opened.close()
    with pytest.raises(EnvironmentFailure):
        scaffold.attempt({"image": "x"}, opened.proxy.open(ScriptedEngine()))


def rows(count: int) -> list[dict[str, Any]]:
    row = {
        "repo": "octo/ship",
        "version": "1",
        "problem_statement": "It sinks.",
        "patch": "",
        "test_patch": "",
        "FAIL_TO_PASS": "[]",
        "PASS_TO_PASS": "[]",
        "image": "octo/ship:1",
        "eval_script": "true",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    return [row | {"instance_id": f"octo__ship-{n}", "base_commit": f"{n:040x}"} for n in range(count)]


@pytest.fixture
def verified(tmp_path: Path) -> Path:
    """Ids and commits of a benchmark of 500, among them the commit of the task octo__ship-1."""
    lines = [f"other__one-{n},other/one,{n + 1000:040x}" for n in range(499)]
    lines.append(f"octo__ship-77,octo/ship,{1:040x}")
    file = tmp_path / "verified.csv"
    file.write_text("\n".join(["instance_id,repo,base_commit", *lines]) + "\n")
    return file


@pytest.fixture
def model(tmp_path: Path) -> Any:
    folder = tmp_path / "model"
    tokenizer().save_pretrained(folder)
    size = len(tokenizer())
    return load_scale("paper_swe").model.model_copy(update={"path": str(folder), "vocabulary_size": size + 3})


def test_tasks_of_a_data_set_must_be_there_and_compared_with_the_benchmark(
    tmp_path: Path, verified: Path, model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    task, file = PAPER.model_copy(update={"held_out_instances": 2}), tmp_path / "data/swe_tasks.jsonl"
    fetch = rf"python -m evaluation\.training_data fetch swe_tasks --out {file}"
    with pytest.raises(ConfigError, match=rf"{file}: the tasks are not there; fetch it: {fetch}"):
        make_environment(task, model, str(tmp_path))
    file.parent.mkdir()
    write_rows(file, rows(9))
    with pytest.raises(ConfigError, match=rf"was not compared .*datasets check {file} --clean {file}"):
        make_environment(task, model, str(tmp_path))
    assert check_command(file, verified, None) == 1  # one is the benchmark's
    assert not record_of(file).exists()
    assert check_command(file, verified, file) == 0
    environment = make_environment(task, model, str(tmp_path))
    names = [
        instance.payload[0]["instance_id"]
        for split in ("train", "held_out")
        for instance in environment.instances(split)  # type: ignore[arg-type]
    ]
    assert sorted(names) == [f"octo__ship-{n}" for n in (0, 2, 3, 4, 5, 6, 7, 8)]
    assert len(environment.instances("held_out")) == 2
    assert len(environment.vocabulary) == model.vocabulary_size
    assert pickle.loads(pickle.dumps(environment)) is environment
    run = resolve("sao_swe", "paper_swe", 0)
    recorded = json.loads(record_of(file).read_text())["sha256"]
    assert train.training_data(run, str(tmp_path)) == {"set": "swe_tasks", "file_sha256": recorded}
    with file.open("a") as content:
        content.write(json.dumps(rows(10)[9]) + "\n")
    swe.environment_of_data_set.cache_clear()
    with pytest.raises(ConfigError, match="was not compared with SWE-Bench Verified as it is now"):
        make_environment(task, model, str(tmp_path))


def test_too_few_tasks_and_damaged_ones_are_refused(tmp_path: Path, verified: Path, model: Any) -> None:
    file = tmp_path / "data/swe_tasks.jsonl"
    file.parent.mkdir()
    write_rows(file, rows(1))
    assert check_command(file, verified, None) == 0
    with pytest.raises(ConfigError, match="1 tasks are too few"):
        make_environment(PAPER, model, str(tmp_path))
    write_rows(file, [row | {"image": ""} for row in rows(1)])
    assert check_command(file, verified, None) == 0
    with pytest.raises(ConfigError, match="lacks image"):
        make_environment(PAPER, model, str(tmp_path))


def test_a_task_on_a_data_set_needs_a_released_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path is not set"):
        make_environment(PAPER, load_scale("smoke").model, str(tmp_path))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the only place of commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def settings(folder: Path, **given: Any) -> ScaffoldSettings:
    return ScaffoldSettings(program(folder, "fitting", "#!/bin/sh\nexit 0\n"), **given)


def refused(wanted: ScaffoldSettings) -> str:
    with pytest.raises(ConfigError) as raised:
        machine.check_scaffold(wanted)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_the_workers_python_must_have_the_releases(tmp_path: Path) -> None:
    said = refused(ScaffoldSettings(tmp_path / "none"))
    assert "there is no such Python" in said and "make openhands-environment" in said
    assert machine.PYTHON_VARIABLE in said
    own = refused(ScaffoldSettings(Path(sys.executable)))  # this one, where OpenHands is of no release
    assert own.startswith(f"{sys.executable}: SWE-Bench has an environment of its own (openhands-sdk")
    assert "make openhands-environment" in own
    said = refused(ScaffoldSettings(tmp_path))  # a folder
    assert "cannot be run" in said


def test_commands_that_a_workspace_needs_must_be_here(tmp_path: Path, commands: Path) -> None:
    local = {"workspace": "local", "backend": "bubblewrap"}
    assert "bubblewrap is not installed" in refused(settings(tmp_path, **local))
    program(commands, "bwrap", "#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n")
    said = refused(settings(tmp_path, **local))
    assert "cannot make namespaces here (bwrap: No permissions); set workspace: docker" in said
    program(commands, "bwrap", "#!/bin/sh\nexit 0\n")
    assert "tmux is not installed" in refused(settings(tmp_path, **local))
    program(commands, "tmux", "#!/bin/sh\nexit 0\n")
    machine.check_scaffold(settings(tmp_path, **local))
    apptainer = settings(tmp_path, workspace="apptainer", backend="bubblewrap", image="x")
    assert "apptainer is not installed" in refused(apptainer)
    remote = settings(tmp_path, workspace="remote", backend="bubblewrap")
    assert f"set {machine.SERVER_VARIABLE}" in refused(remote)


def test_docker_must_answer_and_its_image_be_named(tmp_path: Path, commands: Path) -> None:
    assert f"set {machine.IMAGE_VARIABLE}" in refused(settings(tmp_path))
    assert "docker is not installed" in refused(settings(tmp_path, image="x:{instance}"))
    program(commands, "docker", "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    said = refused(settings(tmp_path, image="x:{instance}"))
    assert "(Cannot connect to the Docker daemon); start its daemon" in said
    program(commands, "docker", "#!/bin/sh\necho 28.1\n")
    machine.check_scaffold(settings(tmp_path, image="x:{instance}"))


def test_all_is_looked_for_before_an_engine_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over OpenRLHF is refused before Ray or anything else starts."""
    started: list[Any] = []
    environment = make_environment(TINY)
    monkeypatch.setattr("sao.environments.make_environment", lambda *_: environment)
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: started.append(words))
    monkeypatch.setenv(machine.PYTHON_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^task swe_tiny: .*: there is no such Python"):
        train.check_environment(resolve("sao_swe", "openrlhf_smoke_swe", 0), str(tmp_path))
    assert not started


def test_workspaces_elsewhere_reach_the_proxy_by_this_machines_address() -> None:
    address = machine.node_address()
    assert not address.startswith("127.") and len(address.split(".")) == 4


def test_tiny_tasks_leave_no_folder(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    code = "from evaluation.swe.tiny_traces import TinyTasks; print(len(TinyTasks.described().rows))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "5\n" and list(tmp_path.iterdir()) == []
