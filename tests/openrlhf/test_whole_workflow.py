"""The paper's chain for mathematics through Snakemake, whole, with a tiny model in the released one's place.

Public sets from local folders, a teacher behind HTTP, its traces, fine-tuning, value pretraining, SAO,
evaluations by vLLM, Table 1. Killed on the way and started again, as a user would.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
from math_standins import ScriptedModel
from released import MATH, problems, save_released_model
from test_end_to_end import lines
from workflow_project import SNAKEMAKE, Project, job_counts

from evaluation.math.synthetic import problem_of
from sao.environments.python_math import Problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        subprocess.run([*SNAKEMAKE, "--version"], capture_output=True).returncode != 0,
        reason="needs an environment with Snakemake: SAO_WORKFLOW_PYTHON=/path/to/python",
    ),
]

SCALE, BENCHMARK, BENCHMARK_PROBLEMS, RUNS = "tiny", "aime_2025", 3, 2
POLICIES = {"base_python", "base_no_python", "sft_python", "sft_no_python", "sao"}
START_SECONDS, END_SECONDS = 900, 60
REPOSITORY = Path(__file__).parents[2]
MOST_TOKENS = 600  # of a conversation with the teacher a byte counts as a token
TASK = MATH | {"data": "math_prompts", "benchmarks": [BENCHMARK], "max_tokens": MOST_TOKENS}
SETTINGS = {
    "extends": "openrlhf_smoke",
    "title": "the paper's chain with a tiny model",
    "tasks": {"reasoning": TASK, "writing": None},
    "warm_start": None,
    "sft": {
        "data": "sft_prompts",
        "teacher": "scripted",
        "samples_per_problem": 2,
        "epochs": 1,
        "batch_trajectories": 4,
        "learning_rate": 1e-4,
        "warm_up_share": 0.1,
    },
    "value_pretraining": {"rollouts": 16, "batch_trajectories": 8, "epochs": 1},
    "training": {"batch_trajectories": 8, "updates": 2},
    "sampler": {"slots": 8, "max_tokens": MOST_TOKENS},
    "evaluation": {"steps": [1, 2]},
    "checkpoint_interval": 1,
}


def make_project(folder: Path) -> Project:
    """The repository's files with one row, one scale, and local sets under the names of the public ones."""
    project = Project(folder / "project", ("sao",), standins=False)
    environments = "experiments/environments"
    shutil.copytree(REPOSITORY / environments, project.path(environments))
    size = save_released_model(folder / "released")
    configuration = json.loads((folder / "released" / "config.json").read_text())
    longer = configuration | {"max_position_embeddings": MOST_TOKENS}
    (folder / "released" / "config.json").write_text(json.dumps(longer))
    scale = SETTINGS | {"model": {"path": str(folder / "released"), "vocabulary_size": size}}
    project.write(f"experiments/scales/{SCALE}.yaml", yaml.safe_dump(scale))
    posed = [problem_of(instance) for instance in problems()]
    rows = [
        {"problem_idx": one.problem_id, "problem": one.text, "answer": one.answer, "problem_type": one.label}
        for one in posed
    ]
    save_rows(folder / "public" / "rows.jsonl", rows)
    save_rows(folder / "benchmarks" / f"{BENCHMARK}.jsonl", rows[:BENCHMARK_PROBLEMS])
    columns = {"id": "problem_idx", "text": "problem", "answer": "answer"}
    public = {"hub": str(folder / "public"), "config": None, "revision": "local", "sha256": "unverified"}
    public |= {"title": "a local set", "split": "train", "loader": "problems", "columns": columns}
    public |= {"use": "a test", "licence": "none", "size": "tiny", "benchmarks": [BENCHMARK]}
    project.write("experiments/data.yaml", yaml.safe_dump({"math_prompts": public, "sft_prompts": public}))
    pins = yaml.safe_load((REPOSITORY / "experiments" / "benchmarks.yaml").read_text())
    shorter = pins[BENCHMARK] | {"rows": BENCHMARK_PROBLEMS, "answers": "any"}
    project.write("experiments/benchmarks.yaml", yaml.safe_dump({BENCHMARK: shorter}))
    protocol = project.path("evaluation/math/protocol.py").read_text()
    due = f'"AIME2025", {BENCHMARK_PROBLEMS}, {RUNS})'
    assert protocol.count('"AIME2025", 30, 16)') == 1
    project.write("evaluation/math/protocol.py", protocol.replace('"AIME2025", 30, 16)', due))
    return project


def save_rows(file: Path, rows: list[dict[str, str]]) -> None:
    file.parent.mkdir()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def teach(said: str, number: int) -> str:
    """Code for a product, as a call of the tool; a fraction at once, and the last one wrongly."""
    for instance in problems():
        posed = problem_of(instance)
        if said.startswith(posed.text) and posed.label == "product":
            return "print({} * {})".format(*instance.payload[1])
        if said.startswith(posed.text):
            return f"So \\boxed{{{0 if posed == too_hard() else posed.answer}}}."
    return f"So \\boxed{{{said.strip()}}}."


def too_hard() -> Problem:
    """The one that the teacher has wrong."""
    return [posed for posed in map(problem_of, problems()) if posed.label == "fraction"][-1]


@dataclass(frozen=True)
class Made:
    """What the three calls of one command said, and where they wrote."""

    project: Project
    outputs: list[str]
    asked: int

    @property
    def folder(self) -> Path:
        return self.project.path(f"results/{SCALE}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """The command killed in the middle of training, given again, and given once more."""
    folder = tmp_path_factory.mktemp("workflow")
    project = make_project(folder)
    places = [f"benchmarks={folder / 'benchmarks'}", f"openrlhf_python={sys.executable}"]
    own_cache = {"HF_HOME": str(folder / "cache")}
    teacher = ScriptedModel(teach)
    with teacher.serve() as url:
        words = ["math", "--config", f"scale={SCALE}", f"teacher={url}", *places]
        first = killed_in_training(project, words, own_cache)
        outputs = [first]
        for _ in range(2):
            code, output = project.run(*words, **own_cache)
            assert code == 0, output[-6000:]
            outputs.append(output)
    yield Made(project, outputs, len(teacher.requests))


def killed_in_training(project: Project, words: list[str], variables: dict[str, str]) -> str:
    """Starts the workflow and kills all of it after the first update of the policy; returns its output."""
    process = project.start(*words, **variables)
    checkpoint = project.path(f"results/{SCALE}/runs/sao/seed0/checkpoint-1/complete.json")
    deadline = time.monotonic() + START_SECONDS
    try:
        while not checkpoint.exists():
            assert process.poll() is None, process.stdout.read()[-6000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started = psutil.Process(process.pid).children(recursive=True)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    assert not psutil.wait_procs(started, timeout=END_SECONDS)[1]
    return output


def test_every_part_is_made_and_sealed(made: Made) -> None:
    parts = ["prepare/math/traces", "prepare/math/warm_start", "prepare/math/values_attention"]
    assert [part for part in parts if not (made.folder / part / "seal.json").exists()] == []
    found = {
        seal.parents[3].name for seal in made.folder.glob(f"evaluations/*/seed0/step*/{BENCHMARK}/seal.json")
    }
    assert found == POLICIES
    run = made.folder / "runs" / "sao" / "seed0"
    assert (run / "seal.json").exists() and not list(run.glob("checkpoint-*"))
    assert [line["step"] for line in lines(run, "metrics.jsonl")] == list(range(-10, 2))


def test_what_was_finished_before_the_kill_is_not_made_again(made: Made) -> None:
    """Training goes on from its checkpoint; what came before it is as it was."""
    first, second, third = made.outputs
    before = {"training_data", "teacher_traces", "sft_traces", "warm_start", "pretrain_values"}
    assert before <= job_counts(first).keys()
    again = job_counts(second)
    assert not before & again.keys() and again["train"] == 1
    assert "Nothing to be done" in third
    provenance = json.loads((made.folder / "runs/sao/seed0/provenance.json").read_text())
    assert [attempt["status"] for attempt in provenance["attempts"]] == ["stopped", "finished"]


def test_no_problem_of_the_benchmark_is_trained_on(made: Made) -> None:
    posed = [problem_of(instance) for instance in problems()]
    kept = {problem.text for problem in posed[BENCHMARK_PROBLEMS:]}
    data = made.project.path("results/data")
    for name in ("math_prompts", "sft_prompts"):
        assert {line["text"] for line in lines(data, f"{name}.jsonl")} == kept
    lock = yaml.safe_load(made.project.path("experiments/data.lock.yaml").read_text())
    assert lock["sft_prompts"]["overlaps"] == {BENCHMARK: BENCHMARK_PROBLEMS}


def test_only_right_solutions_of_the_teacher_are_traces(made: Made) -> None:
    traces = lines(made.project.path("results/data"), "sft_prompts_traces.jsonl")
    solved = [posed.text for posed in map(problem_of, problems()) if posed != too_hard()]
    asked = [trace["messages"][0]["content"].split("\n")[0] for trace in traces]
    assert sorted(asked) == sorted(solved[BENCHMARK_PROBLEMS:])  # the second attempt says the same
    assert all("\\boxed" in trace["messages"][-1]["content"] for trace in traces)
    assert sum("tool_calls" in trace["messages"][1] for trace in traces) >= 3


def test_table_1_holds_the_scores_of_the_policies(made: Made) -> None:
    scores = pd.read_csv(made.folder / "tables" / "math_scores.csv").set_index("row")
    assert set(scores.index) == POLICIES and set(scores["status"]) == {"complete"}
    table = pd.read_csv(made.folder / "tables" / "table1.csv")
    cells = table[(table["measure"] == "evaluation") & (table["column"] == "AIME2025")].set_index("row")
    assert set(cells.index[cells["value"].notna()]) == POLICIES
    assert cells.loc["grpo_dis", "status"] == "not run"
    for policy in POLICIES:
        [file] = made.folder.glob(f"evaluations/{policy}/seed0/step*/{BENCHMARK}/samples.jsonl")
        right = [sample["verdict"] == "right" for sample in lines(file.parent, file.name)]
        assert len(right) == BENCHMARK_PROBLEMS * RUNS
        assert scores.loc[policy, "score"] == pytest.approx(100 * sum(right) / len(right), abs=1e-3)
        assert cells.loc[policy, "value"] == pytest.approx(100 * sum(right) / len(right), abs=1e-3)
    assert min(scores.loc["base_python", "score"], scores.loc["sao", "score"]) > 0
    shown = f"| SAO (`sao`) | 97.3 | {scores.loc['sao', 'score']:.1f} "
    assert shown in (made.folder / "tables" / "table1.md").read_text()


def test_no_temporary_file_is_left(made: Made, temporary_files: Path) -> None:
    """Snakemake's own folder stays where it was killed."""
    assert [file.name for file in temporary_files.iterdir() if not file.name.startswith("snakemake")] == []
