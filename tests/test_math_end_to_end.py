"""The whole mathematics path for real: training, the HTTP server, the sandboxed tool, graders and scores."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analysis import tables
from evaluation.math import protocol
from evaluation.math.arithmetic import arithmetic_environment
from evaluation.math.export_inspect import main as export
from evaluation.math.regrade import main as regrade
from evaluation.math.runner import main
from evaluation.math.store import read_evaluation, read_samples
from evaluation.math.synthetic import BENCHMARK_KINDS, DIGITS, KINDS, SEED, Demonstrator, load_synthetic
from evaluation.summary import find_evaluations, summary_line
from sao import config
from sao.environments import make_environment
from sao.environments.base import Instance
from sao.environments.python_math import question
from sao.local.model import export_policy
from sao.local.packed_batch import optimizer_step
from sao.local.warm_start import imitation_loss, initial_policy

RUNS = 4
STEPS = 60


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that has learned one problem of the benchmark by heart: call the tool, copy its answer."""
    torch.set_num_threads(1)
    scale = config.load_scale("smoke_math")
    task = scale.task("arithmetic")
    assert task.environment == "python_math"
    environment = arithmetic_environment(task)
    assert make_environment(task) is environment
    problem = load_synthetic("aime_2025")[0]
    instance = next(one for one in _instances() if one.prompt_id == problem.problem_id)
    solution = Demonstrator(0.0, 0.0, DIGITS).solution(instance, np.random.default_rng(0))
    example = environment.chat.training_example([*question(problem), *solution])
    policy = initial_policy(scale, environment, 0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=6e-3)
    for _ in range(STEPS):
        loss = imitation_loss(policy, [example], observation_weight=0.0)
        optimizer_step(policy, optimizer, loss, 1.0)
    assert loss.item() < 0.05
    results = tmp_path_factory.mktemp("results")
    folder = results / "smoke_math" / "prepare" / "arithmetic" / "warm_start" / "policy"
    folder.parent.mkdir(parents=True)
    export_policy(policy, folder, environment.tokenizer)
    return results


def _instances() -> Iterator[Instance]:
    """The draws that the benchmark's first problem was chosen from, in order."""
    rng = np.random.default_rng([SEED, 0])
    names = BENCHMARK_KINDS["aime_2025"]
    while True:
        yield KINDS[names[0]].instance(rng, DIGITS)


@pytest.fixture
def one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluation.math import plan

    problems = load_synthetic("aime_2025")[:1]
    monkeypatch.setattr(plan, "load_synthetic", lambda name: problems)
    benchmark = protocol.Benchmark("aime_2025", "AIME 2025", "AIME2025", 1, RUNS)
    monkeypatch.setitem(protocol.BENCHMARKS, "aime_2025", benchmark)


@pytest.mark.usefixtures("one_problem")
def test_train_serve_evaluate_grade_and_summarise(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--row", "sft_python", "--scale", "smoke_math", "--results", str(results)]
    assert main([*words, "--benchmark", "aime_2025"]) == 0
    (evaluation,) = find_evaluations(results / "smoke_math" / "evaluations")
    samples = list(read_samples(evaluation.path))
    right = [sample for sample in samples if sample["verdict"] == "right"]
    assert len(samples) == RUNS and len(right) >= RUNS - 1, samples
    sample = right[0]
    assert [message["role"] for message in sample["messages"]] == ["assistant", "tool", "assistant"]
    assert sample["messages"][1]["content"] == sample["gold"], "what the sandbox printed"
    assert (sample["turns"], sample["tool_calls"], sample["status"]) == (2, 1, "completed")
    assert -0.2 < sample["mean_logprob"] < 0
    line = summary_line(evaluation)
    assert line["score"] == 100 * len(right) / RUNS and line["tool_errors"] == 0.0

    assert regrade([str(evaluation.path)]) == 0
    again = read_evaluation(evaluation.path)
    assert again.sealed and again.scores == evaluation.scores

    tables.main(["--runs", str(results / "smoke_math"), "--out", str(tmp_path / "t"), "--artifact", "table1"])
    table = pd.read_csv(tmp_path / "t" / "table1.csv").query("measure == 'evaluation'")
    (cell,) = table.query("row == 'sft_python' and column == 'AIME2025'").to_dict("records")
    assert cell["value"] == line["score"] and cell["runs_per_problem"] == RUNS
    assert cell["runs"] == "evaluations/sft_python/seed0/step0/aime_2025"
    assert cell["data"] == "synthetic"
    others = table[table["value"].isna()]
    assert len(others) == len(table) - 1 == 31
    assert set(others["status"]) == {"not run", "not at this scale"}

    assert export([str(evaluation.path), "--out", str(tmp_path)]) == 0
    (log,) = tmp_path.glob("*.json")
    written = json.loads(log.read_text())
    assert written["results"]["completed_samples"] == RUNS
    shown = written["samples"][0]
    assert [message["role"] for message in shown["messages"]][:2] == ["user", "assistant"]
    assert {one["epoch"] for one in written["samples"]} == set(range(1, RUNS + 1))
    assert shown["scores"]["answer"]["value"] == ("C" if samples[0]["verdict"] == "right" else "I")
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}T[^_]*_[^_]+_[0-9a-f]{8}\.json", log.name), "as the viewer asks"
    assert "samples" in capsys.readouterr().out
