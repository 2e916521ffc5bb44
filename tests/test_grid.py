"""What the workflow plans before a job starts: switches, runs, inputs, refusals, costs."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluation.math.targets import with_evaluations
from sao import config, costs, grid
from sao.grid import GridError, open_grid
from sao.switches import Switches, parse_seeds

PAPER_LOCKS_ROWS = {
    "sao",
    "sao_dis_only",
    "grpo_dis",
    "grpo_vanilla",
    "sao_critic_1x",
    "sao_full_critic",
    "vapo",
    "running_mean",
    "step_average",
    "step_last_token",
}
ONLINE_ROWS = {"sao_online", "running_mean_online"}


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_spec(row: str, scale: str, seed: int, changed: bool = False) -> Path:
    """A begun run directory, of the grid's settings or of others."""
    settings = config.resolve(row, scale, seed).settings()
    if changed:
        settings["optimizer"]["gradient_clip"] = 0.5
    folder = Path(f"results/{scale}/runs/{row}/seed{seed}")
    folder.mkdir(parents=True)
    spec = {"row": row, "scale": scale, "seed": seed, "config": settings}
    spec["digest"] = config.digest_of(settings)
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder


@pytest.mark.parametrize(
    ("text", "seeds"), [("5", (0, 1, 2, 3, 4)), ("0,3,4", (0, 3, 4)), ("3,", (3,)), ("0,", (0,))]
)
def test_seeds_are_a_count_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "x", "1,1", "1,x", "", ",", "1.5"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(GridError, match="expected a count"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sclae": "cpu"}, "no switch sclae; did you mean scale"),
        ({"scale": "smok"}, "did you mean smoke"),
        ({"scale": ""}, "is empty"),
        ({"model": "glm-4.7"}, "add endpoint=URL"),
        ({"runs": "nowhere"}, "nowhere/runs/<row>/seed<k>/seal.json"),
        ({"runs": "results/logged/cpu", "scale": "cpu"}, "leave them out"),
    ],
)
def test_mistakes_in_switches_name_the_mend(
    given: dict[str, str], message: str, in_empty_folder: Path
) -> None:
    with pytest.raises(GridError, match=message):
        open_grid(given)


def test_default_grid_is_the_papers_rows_with_three_seeds(in_empty_folder: Path) -> None:
    plan = open_grid({})
    assert set(plan.paper_rows()) == PAPER_LOCKS_ROWS | ONLINE_ROWS
    assert plan.seeds == (0, 1, 2)
    assert len(plan.seals(plan.paper_rows())) == 36
    assert not set(plan.beyond_rows()) & set(plan.paper_rows())
    assert set(plan.wanted("table")) == {"table1", "table3", "table4", "table5"}
    assert plan.wanted("table", beyond=True) == ["beyond"]


def test_each_row_starts_from_the_preparation_that_it_needs(in_empty_folder: Path) -> None:
    plan = open_grid({})
    prepare = "results/cpu/prepare"
    warm_start = f"{prepare}/locks/warm_start/seal.json"
    assert plan.preparation("sao", "0") == (warm_start, f"{prepare}/locks/values_attention/seal.json")
    assert plan.preparation("sao_full_critic", "0") == (warm_start, f"{prepare}/locks/values_none/seal.json")
    assert plan.preparation("sao_no_pretrain", "0") == (warm_start,)
    assert plan.preparation("grpo_dis", "0") == (warm_start,)
    assert plan.preparation("running_mean_online", "0") == (f"{prepare}/style/warm_start/seal.json",)


def test_a_finished_run_needs_no_preparation(in_empty_folder: Path) -> None:
    folder = write_spec("sao", "cpu", 1)
    (folder / "seal.json").write_text("{}")
    plan = open_grid({})
    assert plan.preparation("sao", "1") == ()
    assert plan.preparation("sao", "0") != ()


def test_only_the_changed_row_is_refused(in_empty_folder: Path) -> None:
    write_spec("vapo", "cpu", 1, changed=True)
    write_spec("sao", "cpu", 0)
    plan = open_grid({})
    assert list(plan.refused) == ["vapo"]
    message = plan.refused["vapo"]
    assert "optimizer.gradient_clip is 0.5 there and 1.0 here" in message
    assert "python -m sao.runlog archive vapo --scale cpu" in message
    assert not any("/vapo/" in seal for seal in plan.seals(plan.rows))
    assert plan.refusal_marker(["sao"]) == []
    assert plan.row_inputs("vapo") == plan.refusal_marker(plan.rows) != []
    assert grid.main(["check"]) == 1


def test_a_damaged_spec_refuses_its_row(in_empty_folder: Path) -> None:
    folder = write_spec("vapo", "cpu", 0)
    (folder / "spec.json").write_text('{"row": ')
    assert "spec.json" in open_grid({}).refused["vapo"]


def test_a_refusal_or_another_config_builds_tables_again(in_empty_folder: Path) -> None:
    rows = open_grid({}).artifacts["table4"].rows
    before = open_grid({}).state(rows)
    assert before != open_grid({"seeds": "5"}).state(rows)
    write_spec("vapo", "cpu", 0, changed=True)
    assert open_grid({}).state(rows) != before


def test_pages_of_other_rows_and_scales_are_told_apart(in_empty_folder: Path) -> None:
    plan = open_grid({})
    plan.check_targets(["--cores", "2", "results/cpu/rows/vapo.md", "elsewhere/rows/x.md"])
    with pytest.raises(GridError, match="no row vapoo; did you mean vapo"):
        plan.check_targets(["results/cpu/rows/vapoo.md"])
    with pytest.raises(GridError, match="add --config scale=smoke"):
        plan.check_targets(["results/smoke/rows/vapo.md"])


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("tables/tabel1.csv", "no table tabel1; did you mean table1"),
        ("figures/figur3.pdf", "no figure figur3; did you mean figure3"),
        ("runs/vap/seed0/seal.json", "no row vap; did you mean vapo"),
    ],
)
def test_misspelt_targets_are_named(in_empty_folder: Path, target: str, fault: str) -> None:
    plan = open_grid({})
    known = ("tables/table1.csv", "tables/claims.md", "figures/figure3.png", "runs/vapo/seed0/seal.json")
    plan.check_targets([f"results/cpu/{name}" for name in known])
    with pytest.raises(GridError, match=fault):
        plan.check_targets([f"results/cpu/{target}"])


def test_logged_runs_are_only_read(in_empty_folder: Path) -> None:
    for seal in ("runs/sao/seed0", "runs/sao/seed4", "runs/vapo/seed0", "prepare/locks/warm_start"):
        folder = Path("results/logged/cpu", seal)
        folder.mkdir(parents=True)
        (folder / "seal.json").write_text("{}")
    plan = open_grid({"runs": "results/logged/cpu"})
    assert (plan.root, plan.source) == ("results/plots/cpu", "results/logged/cpu")
    assert plan.rows == ("sao", "vapo") and plan.seeds == (0, 4)
    assert "results/logged/cpu/prepare/locks/warm_start/seal.json" in plan.artifact_inputs("table1")
    assert all(path.startswith("results/logged/") for path in plan.artifact_inputs("table4"))
    assert plan.refused == {}


def test_row_with_a_changed_sealed_run_is_refused(in_empty_folder: Path) -> None:
    folder = write_spec("sao", "cpu", 0)
    digest = config.resolve("sao", "cpu", 0).digest()
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    files = {"metrics.jsonl": {"sha256": hashlib.sha256(b"as it was").hexdigest()}}
    (folder / "seal.json").write_text(json.dumps({"digest": digest, "files": files}))
    assert "metrics.jsonl: was changed after the run was sealed" in open_grid({}).refused["sao"]


def test_costs_come_from_logged_runs_where_there_are_any(in_empty_folder: Path) -> None:
    for seed, hours in ((0, 0.1), (1, 0.3)):
        folder = write_spec("sao", "cpu", seed)
        (folder / "seal.json").write_text(json.dumps({"digest": config.resolve("sao", "cpu", seed).digest()}))
        (folder / "provenance.json").write_text(json.dumps({"cpu_hours": hours}))
    found = {cost.row: cost for cost in costs.costs(open_grid({}))}
    assert found["sao"].seconds == pytest.approx(0.2 * 3600)
    assert (found["sao"].finished, found["sao"].left) == (2, 1)
    assert found["grpo_dis"].left == 3
    assert found["sao_no_dis"].seconds > found["grpo_dis"].seconds > 0


def test_plan_names_runs_and_preparation_left(in_empty_folder: Path) -> None:
    text = costs.plan_table(open_grid({"seeds": "2"}))
    assert "the paper's rows (snakemake): 24 runs left" in text
    assert "style/warm_start" in text and "locks/values_none" in text


def test_planning_imports_no_torch() -> None:
    code = "import sys, sao.grid, sao.costs; sao.grid.open_grid({}); sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )


def test_switches_have_the_documented_defaults() -> None:
    assert Switches.parse({}) == Switches("cpu", "results", None, None)
    assert Switches.parse({}).openrlhf_python is None
    assert Switches.parse({"results": "elsewhere/", "seeds": 2}) == Switches("cpu", "elsewhere", None, (0, 1))


@pytest.mark.usefixtures("in_empty_folder")
def test_evaluated_tables_need_the_evaluations_of_their_rows() -> None:
    plan = with_evaluations(open_grid({"scale": "smoke_math"}))
    place = "results/smoke_math/evaluations"
    ours = f"{place}/sao/seed0/step3/aime_2025/seal.json"
    assert plan.evaluated_tables() == ["table1"]
    assert plan.evaluated_rows() == ["grpo_dis", "grpo_vanilla", "sao", "sao_dis_only"]
    inputs = plan.artifact_inputs("table1")
    assert ours in inputs and f"{place}/sft_no_python/seed0/step0/aime_2025/seal.json" in inputs
    assert not any(place in path for path in plan.artifact_inputs("table4"))
    assert [path for path in plan.row_inputs("sao") if place in path] == [ours]
    assert not any(place in path for path in plan.row_inputs("vapo"))
    assert with_evaluations(open_grid({"scale": "smoke"})).evaluated_tables() == []


@pytest.mark.usefixtures("in_empty_folder")
def test_refused_rows_are_not_evaluated() -> None:
    write_spec("grpo_dis", "smoke_math", 0, changed=True)
    plan = with_evaluations(open_grid({"scale": "smoke_math"}))
    assert not any("grpo_dis" in path for path in plan.artifact_inputs("table1"))
    assert plan.refusal_marker(plan.evaluated_rows())


@pytest.mark.usefixtures("in_empty_folder")
def test_an_evaluation_under_way_leaves_its_table_unfinished() -> None:
    folder = Path("results/smoke_math/evaluations/sao/seed0/step3/aime_2025")
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    plan = with_evaluations(open_grid({"scale": "smoke_math"}))
    assert plan.unfinished("table") == ["table1"] and plan.unfinished("figure") == []
    (folder / "seal.json").write_text("{}")
    assert plan.unfinished("table") == []


@pytest.mark.usefixtures("in_empty_folder")
def test_logged_evaluations_are_those_that_are_there() -> None:
    for place in ("runs/sao/seed0", "evaluations/glm_4_7/seed0/step0/aime_2025"):
        Path("logged", place).mkdir(parents=True)
        Path("logged", place, "seal.json").write_text("{}")
    plan = with_evaluations(open_grid({"runs": "logged"}))
    assert plan.evaluated(["glm_4_7"]) == ["logged/evaluations/glm_4_7/seed0/step0/aime_2025/seal.json"]
