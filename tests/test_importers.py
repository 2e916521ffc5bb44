"""Importing TensorBoard event files and CSV exports: values, marks of the import, and refused input."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from foreign_logs import Row, write_events, write_summaries
from import_commands import OPENRLHF, accuracies, error_of, import_events, mistake, run_import
from synthetic_runs import write_run
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.util.tensor_util import make_tensor_proto

from analysis import importers
from analysis.command import run_command
from analysis.load import AnalysisError, load_logs
from analysis.mapping import known_mappings, load_mapping
from sao.runlog import METRIC_COLUMNS
from sao.runlog_commands import refusals

VERL = [
    (0, {"val-core/aime/acc/mean@32": 0.25, "val-core/aime/acc/best@32/mean": 0.5}),
    (1, {"critic/score/mean": -0.5, "critic/vf_loss": 0.25, "perf/total_num_tokens": 4096.0}),
    (2, {"critic/score/mean": 0.5, "critic/vf_loss": 0.125, "perf/total_num_tokens": 8192.0}),
    (2, {"val-core/aime/acc/mean@32": 0.5, "val-core/hmmt/acc/mean@32": 0.125}),
]
SLIME = [
    (0, {"rollout/raw_reward": 0.5, "rollout/rewards": -0.125, "rollout/step": 0.0, "eval/aime": 0.0}),
    (0, {"train/pg_loss": 0.25, "train/critic-value_loss": 0.5, "train/step": 0.0}),
    (1, {"rollout/raw_reward": 0.75, "rollout/step": 1.0}),
    (1, {"train/pg_loss": 0.125, "train/critic-value_loss": 0.25, "train/step": 1.0}),
    (1, {"eval/aime": 0.5, "eval/aime-truncated_ratio": 0.25, "eval/aime-pass@1": 0.5, "eval/step": 1.0}),
]


def test_openrlhf_values_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = import_events(tmp_path, OPENRLHF, "openrlhf", "--seed", "3", "--label", "SAO, 30B")
    assert list(run.metrics["step"]) == [0, 1]
    assert list(run.metrics["version"]) == [0, 1]
    assert list(run.metrics["reward_mean"]) == [0.25, 0.5]
    assert list(run.metrics["value_loss"]) == [0.25, 0.125]  # OpenRLHF logs half the squared error
    assert run.metrics["learning_rate"].tolist() == pytest.approx([1e-6, 1e-6])
    assert accuracies(run) == [(2, "aime", 0.75)]
    logged = {"step", "version", "reward_mean", "value_loss", "learning_rate"}
    assert all(run.metrics[name].isna().all() for name in METRIC_COLUMNS.keys() - logged)
    printed = capsys.readouterr().out
    assert "reward_mean: train/reward, 2 values" in printed
    assert "value_loss: train/critic_loss times 2, 2 values (OpenRLHF logs half the error" in printed
    assert "accuracy of aime: eval/aime_pass1" in printed
    assert "no mapping names them: eval/aime_pass4, eval/pass1, train/kl" in printed
    assert "null, not logged under a mapped name: policy_loss, clipped, entropy," in printed


def test_first_name_of_a_column_wins(tmp_path: Path) -> None:
    rows = [(1, {"train/rollout/reward_mean": 0.5, "train/reward": 0.25})]
    assert list(import_events(tmp_path, rows, "openrlhf").metrics["reward_mean"]) == [0.5]


def test_lengths_that_count_observations_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OpenRLHF's length runs from the first to the last sampled token, whoever wrote those between."""
    rows = [
        (1, {"train/reward": 0.5, "train/rollout/response_length_mean": 900.0, "train/response_length": 9.0})
    ]
    assert import_events(tmp_path, rows, "openrlhf").metrics["mean_action_tokens"].isna().all()
    said = "no mapping names them: train/response_length, train/rollout/response_length_mean"
    assert said in capsys.readouterr().out


def test_names_that_the_packages_log(tmp_path: Path) -> None:
    """OpenRLHF 0.11.2 puts a second eval_ before a data set; verl 0.9.1 may log the trained entropy alone."""
    rows: list[Row] = [
        (2, {"train/rollout/reward_mean": 0.5}),
        (
            2,
            {
                "eval/eval_aime_pass1": 0.5,
                "eval/eval_aime_pass16": 0.75,
                "eval/eval_response_length_mean": 3.0,
            },
        ),
    ]
    assert accuracies(import_events(tmp_path / "openrlhf", rows, "openrlhf")) == [(2, "aime", 0.5)]
    rows = [
        (1, {"critic/score/mean": 0.25, "actor/entropy_loss": 0.75, "critic/vf_explained_var": 0.5}),
        (2, {"critic/score/mean": 0.25, "actor/entropy_loss": 0.5, "critic/vf_explained_var": 0.25}),
        (2, {"val-core/math-ai/aime25/acc/mean@16": 0.5, "val-core/math-ai/aime25/acc/best@16/mean": 0.75}),
    ]
    run = import_events(tmp_path / "verl", rows, "verl")
    assert list(run.metrics["entropy"]) == [0.75, 0.5] and accuracies(run) == [(2, "math-ai/aime25", 0.5)]
    assert list(run.metrics["explained_variance_before"]) == [0.5, 0.25]


def test_verl_values_and_steps(tmp_path: Path) -> None:
    run = import_events(tmp_path, VERL, "verl")
    assert list(run.metrics["step"]) == [0, 1]
    assert list(run.metrics["reward_mean"]) == [-0.5, 0.5]
    assert list(run.metrics["value_loss"]) == [0.5, 0.25]
    assert list(run.metrics["total_tokens"]) == [4096, 8192]
    assert accuracies(run) == [(0, "aime", 0.25), (2, "aime", 0.5), (2, "hmmt", 0.125)]


def test_slime_values_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = import_events(tmp_path, SLIME, "slime")
    assert list(run.metrics["step"]) == [0, 1]
    assert list(run.metrics["reward_mean"]) == [0.5, 0.75]
    assert list(run.metrics["policy_loss"]) == [0.25, 0.125]
    assert list(run.metrics["value_loss"]) == [0.5, 0.25]
    assert accuracies(run) == [(2, "aime", 0.5)]
    assert "eval/aime at 0 left out: it may be before training or after" in capsys.readouterr().out


def test_critic_only_steps_become_negative(tmp_path: Path) -> None:
    rows = [(step, {"critic/score/mean": step / 8, "val-core/a/acc/mean@1": 0.5}) for step in (1, 2, 3)]
    run = import_events(tmp_path, rows, "verl", "--first-update", "3")
    assert list(run.metrics["step"]) == [-2, -1, 0]
    assert list(run.metrics["version"]) == [0, 0, 0]
    assert list(run.metrics["reward_mean"]) == [0.125, 0.25, 0.375]
    assert [step for step, _, _ in accuracies(run)] == [-1, 0, 1]
    assert (run.status, run.status_detail) == ("finished", "step 1 of 1")


def test_import_is_marked_and_states_no_settings(tmp_path: Path) -> None:
    event_file = write_events(tmp_path / "log", OPENRLHF)
    run = run_import(tmp_path, "tensorboard", str(event_file), "--mapping", "openrlhf", "--label", "Mine")
    assert (run.row, run.scale, run.seed, run.status) == ("sao", "my_30b", 0, "finished")
    digest = hashlib.sha256(event_file.read_bytes()).hexdigest()
    assert run.imported is not None and run.config.keys() == {"training", "imported"}
    assert run.config["training"] == {"updates": 2}
    assert run.imported["label"] == "Mine" and run.imported["format"] == "tensorboard"
    assert run.imported["sha256"] == [digest]
    assert run.imported["columns"]["reward_mean"] == "train/reward"
    provenance = run.provenance
    size = event_file.stat().st_size
    assert provenance["imported_from"] == [{"file": str(event_file), "bytes": size, "sha256": digest}]
    mapping_file = Path(importers.__file__).parent / "mappings" / "openrlhf.yaml"
    assert provenance["mapping"]["sha256"] == hashlib.sha256(mapping_file.read_bytes()).hexdigest()
    assert provenance["mapping"]["resolved"]["columns"]["value_loss"]["factor"] == 2
    assert provenance["account"]["unmapped"] == ["eval/aime_pass4", "eval/pass1", "train/kl"]
    assert provenance["command"].startswith("python -m analysis.importers tensorboard ")
    assert "hardware" not in provenance and "hardware" not in provenance["importing"]


def test_imported_run_is_kept_apart_and_checked(tmp_path: Path) -> None:
    run = import_events(tmp_path, OPENRLHF, "openrlhf")
    folder = tmp_path / "results" / "my_30b"
    logs = load_logs(folder, ["sao"])
    assert logs.runs == {} and logs.finished("sao") == []
    assert [(row.row, row.scale, row.label) for row in logs.imported] == [("sao", "my_30b", "SAO, my_30b")]
    assert list(logs.imported[0].benchmarks["aime"][0].accuracies) == [0.75]
    with open(run.path / "accuracies.jsonl", "a") as file:
        file.write('{"step": 3, "benchmark": "aime", "accuracy": 1.0}\n')
    with pytest.raises(AnalysisError, match=r"accuracies\.jsonl: was changed after the run was sealed"):
        load_logs(folder, ["sao"])


def test_both_forms_of_scalars_are_read_and_texts_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tensor(tag: str, value: object, plugin: str) -> Summary.Value:
        data = SummaryMetadata.PluginData(plugin_name=plugin)
        return Summary.Value(
            tag=tag, tensor=make_tensor_proto(value), metadata=SummaryMetadata(plugin_data=data)
        )

    write_summaries(
        tmp_path / "log",
        1,
        tensor("train/reward", np.float64(0.1), "scalars"),
        tensor("train/generated_samples", b"text", "text"),
    )
    run = run_import(tmp_path, "tensorboard", str(tmp_path / "log"), "--mapping", "openrlhf")
    assert list(run.metrics["reward_mean"]) == [0.1]
    assert "no scalars, left out: train/generated_samples" in capsys.readouterr().out


def test_nan_is_null_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        (1, {"train/reward": 0.5, "train/policy_loss": float("nan"), "eval/a_pass1": float("nan")}),
        (2, {"train/reward": float("inf"), "train/policy_loss": 0.25}),
    ]
    run = import_events(tmp_path, rows, "openrlhf")
    assert run.metrics["policy_loss"].tolist()[1] == 0.25 and np.isnan(run.metrics["policy_loss"][0])
    assert np.isnan(run.metrics["reward_mean"][1])
    assert accuracies(run) == []
    printed = capsys.readouterr().out
    assert "train/policy_loss: 1 values are NaN or infinite, null in the table" in printed
    assert run.provenance["account"]["not_finite"] == {
        "train/reward": 1,
        "train/policy_loss": 1,
        "eval/a_pass1": 1,
    }


def test_steps_logged_twice_are_refused_unless_the_later_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    write_events(log, [(1, {"train/reward": 0.25}), (2, {"train/reward": 0.5})], ".1")
    write_events(log, [(2, {"train/reward": 0.75}), (3, {"train/reward": 1.0})], ".2")
    line = mistake(tmp_path, capsys, "tensorboard", str(log))
    assert "train/reward was logged twice at step 2, as 0.5 and 0.75; with --duplicates last" in line
    run = run_import(tmp_path, "tensorboard", str(log), "--mapping", "openrlhf", "--duplicates", "last")
    assert list(run.metrics["reward_mean"]) == [0.25, 0.75, 1.0]
    assert "train/reward: 1 values gave way to a later one" in capsys.readouterr().out


def test_same_value_twice_is_no_conflict(tmp_path: Path) -> None:
    rows = [(1, {"train/reward": 0.25}), (1, {"train/reward": 0.25})]
    assert list(import_events(tmp_path, rows, "openrlhf").metrics["reward_mean"]) == [0.25]


def test_cut_off_file_is_refused_unless_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_events(tmp_path / "log", [(1, {"train/reward": 0.25}), (2, {"train/reward": 0.5})])
    file.write_bytes(file.read_bytes()[:-3])
    line = mistake(tmp_path, capsys, "tensorboard", str(file))
    assert f"{file}: ends in an incomplete record after record 2; restore the file, or import" in line
    run = run_import(tmp_path, "tensorboard", str(file), "--mapping", "openrlhf", "--incomplete-end")
    assert list(run.metrics["reward_mean"]) == [0.25]
    assert "ends in an incomplete record, which was left out" in run.provenance["account"]["remarks"][0]


def test_changed_byte_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_events(tmp_path / "log", [(1, {"train/reward": 0.25}), (2, {"train/reward": 0.5})])
    content = bytearray(file.read_bytes())
    content[-6] ^= 1  # within the last record, before its checksum
    file.write_bytes(content)
    line = mistake(tmp_path, capsys, "tensorboard", str(file), "--incomplete-end")
    assert f"{file}: is damaged after record 2:" in line and "crc32" in line


def test_sources_that_are_no_run_of_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, text, nothing = tmp_path / "empty", tmp_path / "notes.txt", tmp_path / "nothing.tfevents"
    empty.mkdir()
    text.write_text("These are notes, and no event file.")
    nothing.touch()
    assert f"{empty}: holds no event file" in mistake(tmp_path, capsys, "tensorboard", str(empty))
    assert f"{text}: is no TensorBoard event file" in mistake(tmp_path, capsys, "tensorboard", str(text))
    assert f"{nothing}: is empty" in mistake(tmp_path, capsys, "tensorboard", str(nothing))
    assert "there is no such file or folder" in mistake(tmp_path, capsys, "tensorboard", str(tmp_path / "no"))
    write_events(tmp_path / "runs" / "a", OPENRLHF)
    write_events(tmp_path / "runs" / "b", OPENRLHF)
    line = mistake(tmp_path, capsys, "tensorboard", str(tmp_path / "runs"))
    assert "holds several runs (a, b); name the folder of one" in line
    write_events(tmp_path / "bare", [])
    assert "hold no scalars" in mistake(tmp_path, capsys, "tensorboard", str(tmp_path / "bare"))


def test_missing_required_metric_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_events(tmp_path / "log", [(1, {"train/policy_loss": 0.5, "loss": 1.0})])
    line = mistake(tmp_path, capsys, "tensorboard", str(file))
    assert (
        "has no metric train/rollout/reward_mean or train/reward for the required column reward_mean" in line
    )
    assert "logged were: loss, train/policy_loss" in line


def test_required_column_must_be_there_at_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(0, {"rollout/raw_reward": 0.5, "train/pg_loss": 0.5}), (1, {"train/pg_loss": 0.25})]
    file = write_events(tmp_path / "log", rows)
    line = mistake(tmp_path, capsys, "tensorboard", str(file), mapping="slime")
    assert (
        "reward_mean (rollout/raw_reward) has no value at step 1, where policy_loss (train/pg_loss)" in line
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"train/ppo_clip_ratio": 37.5},
            "holds 37.5 at step 0, and column clipped is a share of action tokens",
        ),
        (
            {"train/rollout/num_samples": 1.5},
            "holds 1.5 at step 0, and column trajectories takes whole numbers",
        ),
        ({"eval/aime_pass1": 75.0}, "eval/aime_pass1 holds 75, and an accuracy lies between 0 and 1"),
    ],
)
def test_values_that_a_column_cannot_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, float], expected: str
) -> None:
    file = write_events(tmp_path / "log", [(1, {"train/reward": 0.5, **values})])
    assert expected in mistake(tmp_path, capsys, "tensorboard", str(file))


def test_existing_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = import_events(tmp_path, OPENRLHF, "openrlhf")
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    capsys.readouterr()
    words = ["tensorboard", str(tmp_path / "log"), "--mapping", "openrlhf", "--row", "sao"]
    line = error_of(capsys, *words, "--scale", "my_30b", "--results", str(tmp_path / "results"))
    assert f"{run.path}: is there already, and is not overwritten" in line
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before


def test_own_scales_and_unknown_rows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "results" / "cpu", "sao", 0, (0.4, 0.45, 0.5, 0.55, 0.6))
    write_events(tmp_path / "log", OPENRLHF)
    words = ["tensorboard", str(tmp_path / "log"), "--mapping", "openrlhf"]
    results = ["--results", str(tmp_path / "results")]
    line = error_of(capsys, *words, "--row", "sao", "--scale", "cpu", "--seed", "7", *results)
    assert "--scale cpu: is a scale of this suite" in line
    assert not (tmp_path / "results" / "cpu" / "runs" / "sao" / "seed7").exists()
    line = error_of(capsys, *words, "--row", "saoo", "--scale", "mine", *results)
    assert "--row saoo: no row of experiments/rows; did you mean sao?" in line
    for scale in ("logged", "../elsewhere", ""):
        assert "use letters, digits" in error_of(capsys, *words, "--row", "sao", "--scale", scale, *results)
    assert refusals(tmp_path / "results", "cpu") == []


def test_missing_extra_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_events(tmp_path / "log", OPENRLHF)
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    assert "pip install '.[importers]'" in mistake(tmp_path, capsys, "tensorboard", str(file))


def write_mapping(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_own_mapping_extends_a_known_one(tmp_path: Path) -> None:
    mapping = write_mapping(
        tmp_path,
        "extends: verl\ntitle: my verl\ncolumns:\n"
        "  masked_low: {from: sao/masked_low_percent, factor: 0.01}\n"
        "  reward_mean: my/reward\n  value_loss: null\n"
        "accuracies: ['test/(?P<benchmark>\\w+)']\n",
    )
    rows = [(1, {"my/reward": 0.5, "critic/vf_loss": 2.0, "sao/masked_low_percent": 25.0, "test/aime": 0.5})]
    run = import_events(tmp_path, rows, mapping)
    assert list(run.metrics["reward_mean"]) == [0.5]
    assert list(run.metrics["masked_low"]) == [0.25]
    assert run.metrics["value_loss"].isna().all()
    assert accuracies(run) == [(1, "aime", 0.5)]
    assert run.provenance["account"]["unmapped"] == ["critic/vf_loss"]
    assert run.provenance["mapping"]["extends"] == "verl"
    assert run.imported is not None and run.imported["mapping"] == "my verl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "extends: verl\ncolumns: {reward_men: a}\n",
            "reward_men is no column of metrics.jsonl; did you mean reward_mean?",
        ),
        (
            "extends: verl\ncolumns: {ratio_histogram: a}\n",
            "ratio_histogram is a histogram, which cannot be imported",
        ),
        ("extends: verl\ncolumns: {step: a}\n", "step follows from the step's number; set first_update"),
        (
            "extends: verl\ncolumns: {reward_mean: null}\n",
            "required column reward_mean has no metric under columns",
        ),
        ("extends: verl\ncolumns: {entropy: {form: a}}\n", "columns.entropy.from: Field required"),
        ("extends: verl\ncolums: {}\n", "colums: Extra inputs are not permitted"),
        ("extends: verl\naccuracies: ['val/(.+)']\n", "names no benchmark; write (?P<benchmark>...)"),
        ("extends: verl\naccuracies: ['val/(']\n", "is no regular expression"),
        ("extends: trl\n", "extends: trl: known are openrlhf, sao, slime, verl"),
        ("- a\n", "holds no keys"),
        ("a: [\n", "is not valid YAML"),
    ],
)
def test_mistaken_mapping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    mapping = write_mapping(tmp_path, text)
    write_events(tmp_path / "log", VERL)
    assert run_command(lambda: import_events(tmp_path, VERL, mapping)) == 2
    line = capsys.readouterr().err
    assert mapping in line and expected in line


def test_known_mappings_are_valid_and_unknown_ones_listed() -> None:
    assert known_mappings() == ["openrlhf", "sao", "slime", "verl"]
    for name in known_mappings():
        assert load_mapping(name)[0].sources()["reward_mean"].metrics
    with pytest.raises(
        AnalysisError, match="neither a known mapping \\(openrlhf, sao, slime, verl\\) nor a file"
    ):
        load_mapping("trl")


def test_csv_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "export.csv"
    file.write_text("Step,critic/score/mean,val-core/a/acc/mean@4,note\n1,0.25,,\n2,nan,0.5,\n")
    run = run_import(tmp_path, "csv", str(file), "--mapping", "verl")
    assert list(run.metrics["step"]) == [0, 1]
    assert run.metrics["reward_mean"][0] == 0.25 and np.isnan(run.metrics["reward_mean"][1])
    assert accuracies(run) == [(2, "a", 0.5)]
    assert "critic/score/mean: 1 values are NaN" in capsys.readouterr().out
    assert run.provenance["imported_from"][0]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_csv_follows_the_mappings_counters_or_the_named_column(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    table = pd.DataFrame({"_step": [0, 1], "train/step": [4, 5], "rollout/step": [4, 5]})
    table["train/pg_loss"], table["rollout/raw_reward"] = [0.5, 0.25], [0.125, 0.75]
    table.to_csv(file, index=False)
    run = run_import(tmp_path, "csv", str(file), "--mapping", "slime")
    assert list(run.metrics["step"]) == [4, 5]
    words = ["csv", str(file), "--mapping", "slime", "--step-column", "_step", "--seed", "1"]
    assert list(run_import(tmp_path, *words).metrics["step"]) == [0, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is no CSV file"),
        ("a,b\n1,2\n", "has no column step or Step or _step or global_step that counts steps"),
        ("step,critic/score/mean\n1,high\n", "line 2: critic/score/mean holds 'high', which is no number"),
        ("step,critic/score/mean\n1.5,0.5\n", "step metric step holds 1.5, which is no whole number"),
        ("step,critic/score/mean\n,0.5\n", "line 2: critic/score/mean has a value and step is empty"),
        ("step,critic/score/mean\n1,\n", "holds no numbers beside step"),
        ("step,critic/score/mean,critic/score/mean\n1,0.5,0.25\n", "column critic/score/mean is there twice"),
        ("step,critic/score/mean\n1,0.5\n1,0.25\n", "critic/score/mean was logged twice at step 1"),
    ],
)
def test_mistaken_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str) -> None:
    file = tmp_path / "export.csv"
    file.write_text(text)
    assert expected in mistake(tmp_path, capsys, "csv", str(file), mapping="verl")


def test_seal_names_every_table(tmp_path: Path) -> None:
    run = import_events(tmp_path, OPENRLHF, "openrlhf")
    seal = json.loads((run.path / "seal.json").read_text())
    assert seal["files"].keys() == {"spec.json", "metrics.jsonl", "accuracies.jsonl"}
    assert seal["files"]["metrics.jsonl"]["lines"] == 2
