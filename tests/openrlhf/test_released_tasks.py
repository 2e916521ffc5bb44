"""Tasks `math` and `judged_style` of a released model: what a run lacks is told before Ray; whole runs."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from judge_server import JudgeServer
from math_standins import tokenizer
from released import MATH, PROBLEMS, REQUESTS, WRITING, make_scales
from test_end_to_end import lines
from test_values import PREPARE, copied_experiments

from evaluation.math import traces
from evaluation.writing import judge
from evaluation.writing.lexicon import STYLE_WORDS
from sao import config, config_files, prepare, train
from sao.local.model import load_policy

REPOSITORY = Path(__file__).parents[2]
SECONDS = 600
TRAIN = """
import sys
from pathlib import Path
from sao import config_files, train
config_files.EXPERIMENTS = Path(sys.argv[1])
sys.exit(train.main(sys.argv[2:]))
"""


def save_scale(experiments: Path, name: str, task: dict[str, Any], model: Path) -> None:
    domain = "writing" if "judge" in task else "reasoning"
    scale = {
        "extends": "openrlhf_smoke",
        "title": "nothing is here",
        "model": {"path": str(model), "vocabulary_size": 512},
        "tasks": {"reasoning": None, "writing": None} | {domain: task},
        "warm_start": None,
        "value_pretraining": {"rollouts": 16, "batch_trajectories": 8, "epochs": 1},
        "sampler": {"max_tokens": task["max_tokens"]},
    }
    (experiments / "scales" / f"{name}.yaml").write_text(yaml.safe_dump(scale))


@pytest.mark.parametrize(
    ("scale", "row", "lacking"),
    [
        ("math", "running_mean", r"task math: .*tiny_problems\.jsonl: is not there; .*add it there"),
        ("math", "running_mean", r"model\.path: .*: no tokenizer can be loaded .*fetch it: hf download"),
        ("writing", "running_mean_online", "SAO_JUDGE_URL is not set"),
        ("writing", "running_mean_online", r"task writing: .*tiny_requests\.jsonl: is not there"),
    ],
)
def test_what_a_run_lacks_is_told_before_ray_starts(
    scale: str,
    row: str,
    lacking: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiments, results = copied_experiments(tmp_path), tmp_path / "results"
    save_scale(experiments, "lacking", MATH if scale == "math" else WRITING, tmp_path / "released")
    monkeypatch.setattr(config_files, "EXPERIMENTS", experiments)
    monkeypatch.delenv(judge.URL_VARIABLE, raising=False)
    (results / "data").mkdir(parents=True)
    if "is not there" in lacking:
        monkeypatch.setenv(judge.URL_VARIABLE, "http://127.0.0.1:9/v1")
        tokenizer().save_pretrained(tmp_path / "released")
    else:
        row_of_data = {"id": "1", "text": "a", "answer": "1"}
        (results / "data" / "tiny_problems.jsonl").write_text(f"{json.dumps(row_of_data)}\n")
    words = ["--row", row, "--scale", "lacking", "--results", str(results)]
    assert train.main(words) == 2
    said = capsys.readouterr().err
    assert re.search(lacking, said) and said.count("\n") == 1
    assert not list(results.glob("**/attempt-*.log"))


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scales(tmp_path_factory.mktemp("released"))


def trained(experiments: Path, scale: str, row: str, **variables: str) -> Path:
    """The directory of a run that `sao.train` brought to its end."""
    results = experiments.parent / "results"
    words = ["--row", row, "--scale", scale, "--results", str(results)]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(experiments), *words],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    folder = results / scale / "runs" / row / "seed0"
    logs = "".join(log.read_text(errors="replace")[-5000:] for log in folder.glob("attempt-*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert (folder / "seal.json").exists()
    assert [line["step"] for line in lines(folder, "metrics.jsonl")] == [0, 1]
    return folder


@pytest.mark.slow
def test_a_run_on_mathematics(experiments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model calls the tool, and has answers right that it knows by heart."""
    folder = trained(experiments, "tiny_math", "running_mean")
    monkeypatch.setattr(config_files, "EXPERIMENTS", experiments)
    run = config.resolve("running_mean", "tiny_math", 0)
    metrics = lines(folder, "metrics.jsonl")
    assert all(line["trajectories"] == 8 and line["invalid"] == 0 for line in metrics)
    assert sum(line["reward_mean"] for line in metrics) > 0
    evaluations = lines(folder, "evaluations.jsonl")
    assert Counter(line["step"] for line in evaluations) == {1: PROBLEMS // 3, 2: PROBLEMS // 3}
    held_out = {line["problem_id"] for line in evaluations}
    trajectories = lines(folder, "training_trajectories.jsonl.gz")
    assert held_out.isdisjoint(line["problem_id"] for line in trajectories)
    texts = ["".join(line["token_texts"]) for line in trajectories]
    assert all("Tools:" in text for text in texts) and any("<tool_response>" in text for text in texts)
    weights = folder / "weights" / "step-2"
    assert (weights / "chat_template.jinja").exists() and load_policy(weights).config.vocab_size == (
        run.model.vocabulary_size
    )


@pytest.mark.slow
def test_fine_tuning_on_the_traces_of_a_teacher(experiments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local engine serves the teacher; its right solutions are trained on; the chat template is kept."""
    monkeypatch.setattr(config_files, "EXPERIMENTS", experiments)
    results = experiments.parent / "results"
    for command in ("sample", "keep"):
        assert traces.main([command, "--scale", "tiny_taught", "--results", str(results)]) == 0
    kept = lines(results / "data", "tiny_problems_traces.jsonl")
    assert 4 <= len(kept) <= 2 * PROBLEMS
    for line in kept:
        called, answered = line["messages"][1], line["messages"][-1]
        assert "tool_calls" in called and "\\boxed" in answered["content"]
    words = ["warm-start", "--scale", "tiny_taught", "--task", "math", "--results", str(results)]
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(experiments), *words],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    folder = prepare.require_preparation(str(results), "tiny_taught", "math", "warm_start") / "policy"
    tuned, released = (load_policy(place) for place in (folder, experiments.parent / "released"))
    assert not tuned.lm_head.weight.equal(released.lm_head.weight)
    assert (folder / "chat_template.jinja").exists()


@pytest.mark.slow
def test_a_run_on_judged_texts(experiments: Path) -> None:
    """The judge is behind HTTP and at times without a verdict; every text is in one of the two styles."""

    def script(body: dict[str, Any], number: int) -> str:
        text = body["messages"][-1]["content"].rsplit("===\n", 2)[1].split("\n")[0]
        styles = [name for name in ("cute", "academic") if text.split(" ")[0] == STYLE_WORDS[name][0]]
        if number == 2:
            return "I cannot say."
        return f"Read.\nQUALITY: {int(bool(styles))}\nSTYLE: {styles[0] if styles else 'none'}"

    with JudgeServer(script).serve() as server:
        folder = trained(experiments, "tiny_writing", "running_mean_online", SAO_JUDGE_URL=server.url)
        asked = len(server.requests)
    evaluations = lines(folder, "evaluations.jsonl")
    assert Counter(line["step"] for line in evaluations) == {1: REQUESTS // 3, 2: REQUESTS // 3}
    assert {"cute", "academic"} & {line["style"] for line in evaluations}
    log = lines(experiments.parent / "results", "judge.jsonl")
    assert len(log) == asked > 0 and {line["model"] for line in log} == {"scripted"}
    rewards = [line["reward"] for line in lines(folder, "training_trajectories.jsonl.gz")]
    assert set(rewards) <= {0.0, 1.0} and sum(rewards) > 0
