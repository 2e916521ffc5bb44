"""The Snakefile under failures, kills, changed rows and logged runs, with workflow_project.py's stand-ins."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from workflow_project import ROOT, SNAKEMAKE, Project, job_counts, wait_for

from sao.runlog_files import lock

ROWS = ("sao", "grpo_dis", "vapo", "sao_no_dis")
ALL_STEPS = ["0", "1", "2", "3"]
NOTHING = "Nothing to be done"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", ROWS)


@pytest.fixture(scope="module")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("finished") / "project", ROWS)
    code, output = made.run()
    assert code == 0, output
    return made


@pytest.fixture
def finished(_finished: Project, tmp_path: Path) -> Project:
    """A project whose default target is made, in a folder of its own."""
    copy = Project.__new__(Project)
    copy.folder = tmp_path / "project"
    shutil.copytree(_finished.folder, copy.folder)
    return copy


def dry_run(*targets: str, folder: Path) -> dict[str, int]:
    """Jobs that the repository's own Snakefile plans in an empty folder, as in a clean clone."""
    command = [*SNAKEMAKE, *targets, "-n", "-s", str(ROOT / "Snakefile"), "--directory", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return job_counts(done.stdout + done.stderr)


def test_dry_run_of_a_clean_clone_is_the_papers_grid(tmp_path: Path) -> None:
    jobs = dry_run(folder=tmp_path)
    assert jobs == {
        "warm_start": 2,
        "pretrain_values": 3,
        "train": 36,
        "table": 4,
        "figure": 6,
        "claims": 1,
        "comparisons": 1,
        "published": 1,
        "report": 1,
        "all": 1,
    }


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (
            "paper_math",
            {"training_data": 2, "teacher_traces": 1, "sft_traces": 1, "warm_start": 1}
            | {"pretrain_values": 2, "train": 10, "evaluate_math": 32}
            | {"table": 4, "figure": 5},
        ),
        ("paper_swe", {"training_data": 1, "pretrain_values": 1, "train": 2, "table": 1}),
        ("paper_writing", {"training_data": 1, "pretrain_values": 1, "train": 2, "figure": 1}),
    ],
)
def test_the_papers_scales_are_planned_whole(scale: str, expected: dict[str, int], tmp_path: Path) -> None:
    """Traces and fine-tuning for mathematics alone; coding and writing start from the released model."""
    once = dict.fromkeys(["claims", "comparisons", "published", "report", "all"], 1)
    assert dry_run("--config", f"scale={scale}", folder=tmp_path) == expected | once


def test_data_and_traces_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    """Neither do finished traces, nor those of elsewhere, ask for their problems."""
    data = tmp_path / "results" / "data"
    target = ("results/paper_math/runs/grpo_dis/seed0/seal.json", "--config", "scale=paper_math")
    assert dry_run(*target, folder=tmp_path)["training_data"] == 2
    seal = tmp_path / "results" / "paper_math" / "prepare" / "math" / "traces" / "seal.json"
    seal.parent.mkdir(parents=True)
    seal.touch()
    assert dry_run(*target, folder=tmp_path) == {
        "training_data": 1,
        "sft_traces": 1,
        "warm_start": 1,
        "train": 1,
    }
    data.mkdir()
    (data / "sft_prompts_traces.jsonl").touch()
    (data / "math_prompts.jsonl").touch()
    shutil.rmtree(seal.parent)
    assert dry_run(*target, folder=tmp_path) == {"warm_start": 1, "train": 1}


def test_copies_of_data_and_benchmarks_reach_the_command(tmp_path: Path) -> None:
    target = "results/data/swe_tasks.jsonl"
    switches = ["--config", "scale=paper_swe", "data=my sets", "benchmarks=copies"]
    command = [*SNAKEMAKE, target, "-n", "-p", "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    done = subprocess.run([*command, *switches], capture_output=True, text=True, check=True)
    options = "--data-dir 'my sets' --benchmarks-dir copies"
    assert f"evaluation.training_data fetch swe_tasks --out {target} {options}" in done.stdout + done.stderr


def test_one_row_trains_itself_and_sao(tmp_path: Path) -> None:
    jobs = dry_run("results/cpu/rows/vapo.md", folder=tmp_path)
    assert jobs == {"warm_start": 1, "pretrain_values": 2, "train": 6, "row": 1}


def test_math_makes_table_1_from_evaluations(tmp_path: Path) -> None:
    jobs = dry_run("math", "--config", "scale=cpu_math", folder=tmp_path)
    assert jobs.pop("evaluate_math") == (4 + 4) * 4, "rows without training and trained ones, on 4 benchmarks"
    trained = {"warm_start": 1, "pretrain_values": 2, "train": 4}
    assert jobs == {**trained, "math_scores": 1, "table": 1, "math": 1}
    jobs = dry_run("results/smoke_math/rows/vapo.md", "--config", "scale=smoke_math", folder=tmp_path)
    assert "evaluate_math" not in jobs, "Table 1 has no row vapo"
    jobs = dry_run("results/smoke_math/rows/grpo_dis.md", "--config", "scale=smoke_math", folder=tmp_path)
    assert jobs["evaluate_math"] == 2


def test_swe_makes_table_2_behind_all_evaluations(tmp_path: Path) -> None:
    """With an endpoint; without one the tables and claims take what was evaluated already."""
    given = ("--config", "scale=paper_swe", "endpoint=http://127.0.0.1:1/v1")
    jobs = dry_run("swe", *given, folder=tmp_path)
    made = {"evaluate_swe": 3, "grade_swe": 3, "swe_scores": 1, "table": 1, "swe": 1}
    assert jobs == {"training_data": 1, "pretrain_values": 1, "train": 2} | made


def test_failed_evaluation_is_shown_and_made_when_started_again(project: Project) -> None:
    math = ("math", "--config", "scale=smoke_math")
    code, output = project.run(*math, FAILING_EVALUATION="sft_python")
    assert code != 0
    assert "sft_python: endpoint broken on purpose" in output
    table = project.path("results/smoke_math/tables/table1.csv")
    shown = table.read_text()
    assert "evaluations/base_python/" in shown and "evaluations/sft_python/" not in shown

    code, output = project.run(*math)
    assert code == 0, output
    assert job_counts(output) == {"evaluate_math": 1, "math_scores": 1, "table": 1, "math": 1}
    assert "evaluations/sft_python/seed0/step0/aime_2025" in table.read_text()
    assert NOTHING in project.run(*math)[1]


def test_default_target_leaves_out_rows_beyond_the_paper(finished: Project) -> None:
    assert finished.seals() == {"sao", "grpo_dis", "vapo"}
    code, output = finished.run("beyond")
    assert code == 0, output
    assert job_counts(output)["train"] == 1
    assert "sao_no_dis" in finished.path("results/smoke/tables/beyond.csv").read_text()
    assert "sao_no_dis" in finished.path("results/smoke/tables/claims_beyond.csv").read_text()


def test_nothing_trains_a_finished_run_again(finished: Project) -> None:
    assert NOTHING in finished.run()[1]
    prepare = finished.path("results/smoke/prepare/locks")
    os.utime(prepare / "warm_start" / "seal.json")
    shutil.rmtree(prepare / "values_attention")
    shutil.rmtree(finished.path(".snakemake"))
    snakefile = finished.path("Snakefile")
    snakefile.write_text(
        snakefile.read_text().replace("{resources.command} -m sao.train", "{resources.command}  -m sao.train")
    )
    jobs = job_counts(finished.run("-n")[1] + "Job stats:\n\n\n\ntotal")
    assert "train" not in jobs and "pretrain_values" not in jobs


def test_failed_run_stops_no_other_and_continues_when_started_again(project: Project) -> None:
    code, output = project.run(FAILING_ROW="grpo_dis")
    assert code != 0
    assert "grpo_dis: broken on purpose" in output
    assert project.seals() == {"sao", "vapo"}
    assert project.steps("grpo_dis") == ["0", "1"]
    partial = project.path("results/smoke/tables/table1.csv").read_text()
    assert "runs/sao/" in partial and "runs/grpo_dis/" not in partial

    code, output = project.run()
    assert code == 0, output
    assert job_counts(output)["train"] == 1
    assert project.steps("grpo_dis") == ALL_STEPS
    assert "runs/grpo_dis/" in project.path("results/smoke/tables/table1.csv").read_text()
    assert "runs/grpo_dis/" in project.path("results/smoke/tables/claims.csv").read_text()
    assert NOTHING in project.run()[1]


def test_killed_workflow_continues_without_unlocking(project: Project) -> None:
    process = project.start(STEP_SECONDS="0.5")
    wait_for(project.path("results/smoke/runs/grpo_dis/seed0/steps.txt"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = project.steps("grpo_dis")
    assert 0 < len(before) < 4

    code, output = project.run()
    assert code == 0, output
    assert project.steps("grpo_dis") == ALL_STEPS
    assert project.seals() == {"sao", "grpo_dis", "vapo"}


def test_second_workflow_cannot_enter_a_run_under_way(project: Project) -> None:
    run = project.path("results/smoke/runs/grpo_dis/seed0")
    run.mkdir(parents=True)
    held = lock(run / ".lock")  # as the process of another workflow does
    try:
        code, output = project.run("results/smoke/runs/grpo_dis/seed0/seal.json")
    finally:
        os.close(held)
    assert code != 0 and "another process" in output, output
    assert project.steps("grpo_dis") == []


def test_interrupting_twice_keeps_what_is_finished(project: Project) -> None:
    code, output = project.run("results/smoke/runs/grpo_dis/seed0/seal.json")
    assert code == 0, output
    process = project.start(STEP_SECONDS="0.5")
    wait_for(project.path("results/smoke/runs/vapo/seed0/steps.txt"))
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "the same command continues" in output
    assert project.seals() >= {"grpo_dis"}

    code, output = project.run()
    assert code == 0, output
    assert project.steps("vapo") == ALL_STEPS


def test_changed_row_is_refused_alone_and_runs_again_once_archived(finished: Project) -> None:
    row = finished.path("experiments/rows/vapo.yaml")
    row.write_text(row.read_text() + "minibatches_per_batch: 2\n")
    shutil.rmtree(finished.path("results/smoke/runs/grpo_dis"))

    code, output = finished.run()
    assert code != 0
    assert "python -m sao.runlog archive vapo --scale smoke" in output
    assert "minibatches_per_batch is 1 there and 2 here" in output
    assert job_counts(output)["train"] == 1 and "grpo_dis" in finished.seals()
    assert finished.steps("vapo") == ALL_STEPS

    code, output = finished.run("results/smoke/rows/vapo.md")
    assert code != 0 and "train" not in job_counts(output)
    assert not finished.path("results/smoke/rows/vapo.md").exists()

    finished.module("sao.runlog", "archive", "vapo", "--scale", "smoke")
    code, output = finished.run()
    assert code == 0, output
    jobs = job_counts(output)
    assert jobs["train"] == 1 and jobs["table"] == 1  # vapo is in Table 4 alone
    assert finished.path("results/smoke/archive/vapo-1/seed0/steps.txt").exists()


def test_logged_runs_make_plots_and_nothing_trains(finished: Project) -> None:
    logged = finished.path("results/logged/smoke")
    shutil.copytree(finished.path("results/smoke/runs"), logged / "runs")
    shutil.rmtree(finished.path("results/smoke"))
    finished.path("sao/train.py").unlink()
    before = sorted(path for path in logged.rglob("*"))

    code, output = finished.run("tables", "figures", "--config", "runs=results/logged/smoke")
    assert code == 0, output
    checks = {"comparisons", "published"}
    assert set(job_counts(output)) == {"table", "figure", "claims", "tables", "figures", *checks}
    assert finished.path("results/plots/smoke/figures/figure3.pdf").exists()
    assert sorted(path for path in logged.rglob("*")) == before
    assert not finished.path("results/smoke").exists()


def test_snakemakes_own_report_needs_no_network(finished: Project) -> None:
    code, output = finished.run("--report", "workflow.html")
    assert code == 0, output
    page = finished.path("workflow.html").read_text()
    for category in ("Tables", "Figures", "Claims", "Published values", "Report"):
        assert f'"{category}"' in page
    assert "figure3.svg" in page and "table4.csv" in page
    assert "beside it is the table as a reader sees it" in page, "the caption of a table"
    assert not re.findall(r"<(?:script|img|iframe)[^>]* src=\"?https?:", page)
    assert not re.findall(r"<link[^>]* href=\"?https?:", page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "--config", "scale=smoke", "beside=results/none"), "results/none holds no imported run"),
        (("results/smoke/rows/vapoo.md",), "no row vapoo; did you mean vapo?"),
        (("-n", "--config", "scale=smok"), "no scale smok; did you mean smoke?"),
        (("math",), "results/smoke has no mathematics benchmarks; add --config scale=cpu_math"),
    ],
)
def test_mistakes_give_one_line(project: Project, arguments: tuple[str, ...], message: str) -> None:
    code, output = project.run(*arguments)
    lines = [line for line in output.splitlines() if not line.startswith("Using workflow specific profile")]
    assert code != 0
    assert len(lines) == 1 and message in lines[0], output


def test_plan_prints_what_is_left(finished: Project) -> None:
    code, output = finished.run("plan")
    assert code == 0, output
    assert "the paper's rows (snakemake): 0 runs left" in output
    assert "beyond (snakemake beyond): 1 runs left" in output
