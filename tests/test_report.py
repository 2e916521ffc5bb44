"""The report's content: numbers and links traced to made-up runs, honest thinning, damaged logs."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from report_pages import OURS, Page, section, trajectory, write_report, write_results
from swe_scores import evaluate, outcomes
from synthetic_runs import write_run

from analysis.command import run_command
from analysis.curves import Curve
from analysis.load import AnalysisError, load_logs
from analysis.render import EMPTY
from analysis.report.__main__ import main
from analysis.report.curves import thinned
from analysis.report.drawings import inline_svg
from analysis.report.evaluations import evaluation_page
from analysis.report.markup import Linker
from analysis.report.settings import decisions, differences
from analysis.report.trajectories import advantage_class, choose, legend, row_samples, value_class
from analysis.trace import FILE, TRAINING_FILE
from sao.config_rows import DECISION
from sao.documentation import row_keys
from sao.runlog import TRAJECTORY_COLUMNS, append_records
from sao.runlog_files import append_lines

LOGGED = Path(__file__).parents[1] / "results/logged/cpu"
LARGEST = 15_000_000  # bytes, what a browser on a phone still opens at ease


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results") / "cpu")


@pytest.fixture(scope="module")
def text(results: Path) -> str:
    return write_report(results, results / "report.html")


def fingerprints(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_same_runs_give_the_same_bytes_without_torch(results: Path, text: str) -> None:
    code = (
        "import sys; from analysis.report.__main__ import main; main(sys.argv[1:]);"
        "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    arguments = ["--runs", str(results), "--out", str(results / "report.html")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (results / "report.html").read_text(encoding="utf-8") == text


def test_every_link_inside_leads_somewhere_and_nothing_leads_to_the_network(text: str) -> None:
    page = Page.read(text)
    assert not page.unclosed
    assert len(page.ids) == len(set(page.ids))
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside - set(page.ids) == {"all"}, "#all is all pages, shown by the script"
    assert (
        "row-sao" in inside and "run-sao-0" in inside and "claim-C3" in inside and "figure-figure3" in inside
    )
    outside = [link for link in page.links if not link.startswith("#")]
    assert set(outside) == {
        f"runs/{run}/" for run in ("sao/seed0", "sao/seed1", "sao/seed2", "vapo/seed0")
    } | {f"runs/{row}/seed{seed}/" for row in ("grpo_dis", "grpo_vanilla") for seed in range(2)}
    named = [given.get("src") or given.get("href") or "" for tag, given in page.elements if tag != "a"]
    assert not [value for value in named if "//" in value]
    assert "url(http" not in text and "@import" not in text


def test_runs_stay_as_they_are_and_are_reached_from_where_the_report_lies(
    results: Path, tmp_path: Path
) -> None:
    copy, out = tmp_path / "cpu", tmp_path / "far" / "off" / "report.html"
    shutil.copytree(results, copy)
    before = fingerprints(copy)
    page = Page.read(write_report(copy, out))
    assert fingerprints(copy) == before
    folders = [link for link in page.links if not link.startswith("#")]
    assert folders and all((out.parent / folder / "spec.json").is_file() for folder in folders)


def test_missing_seeds_are_said_on_every_page(text: str) -> None:
    overview = words(section(text, "overview"))
    assert "GRPO + DIS : 2 of 3 seeds. seed 2: not run." in overview
    assert "Vanilla VAPO (no DIS) : 0 of 3 seeds." in overview
    assert "running at" in overview or "stopped at step 48 of 120" in overview
    assert "2 of 3 seeds finished" in words(section(text, "row-grpo_dis"))
    assert "2 of 3" in section(text, "tables")


def test_values_and_verdicts_are_those_of_the_tables(results: Path, text: str) -> None:
    # 128 problems; the curve's last two points are solved by round(70.4) = 70 and round(76.8) = 77 of them.
    assert f"score {100 * (70 + 77) / 256:.1f}%" in section(text, "row-sao")
    assert "97.3" in section(text, "tables"), "the paper's AIME2025 of SAO"
    claim = words(section(text, "claim-C1"))
    assert "GRPO without DIS collapses when asynchronous" in claim and "two seeds" in claim
    assert 'id="run-grpo_vanilla-1"' in text and 'href="#run-grpo_vanilla-1"' in section(text, "claim-C1")
    assert "at step" in words(section(text, "row-grpo_vanilla")), "where it collapsed"


def test_every_claim_and_every_row_has_a_page(results: Path, text: str) -> None:
    logs = load_logs(results, ["sao", "grpo_dis", "grpo_vanilla", "vapo"])
    for number in range(1, 17):
        assert f'id="claim-C{number}"' in text
    for row in logs.runs:
        assert f'id="row-{row}"' in text


def test_decisions_are_the_schemas(results: Path) -> None:
    logs = load_logs(results, ["sao", "grpo_dis", "vapo"])
    view = decisions(logs, Linker())
    keys = [words(line[0].html) for line in view.rows]
    tagged = [key for key, _, _, source in row_keys() if source == DECISION and key not in ("title", "group")]
    assert [key.split(":")[0] for key in keys] == tagged
    values = {words(line[0].html): words(line[2].html) for line in view.rows}
    assert values["advantage.gamma"] == "1.0" and values["optimizer.betas"] == "[0.9, 0.95]"


def test_what_differs_is_what_the_rows_file_states(results: Path) -> None:
    logs = load_logs(results, ["sao", "vapo"])
    view = differences(logs, "vapo", Linker())
    assert view is not None
    found = {words(line[0].html): (words(line[1].html), words(line[2].html)) for line in view.rows}
    assert found == {
        "objective.kind": ("&#34;dis&#34;", "&#34;ppo_clip&#34;"),
        "objective.positive_example_coefficient": ("0.0", "0.1"),
        "objective.eps_low": ("0.3", EMPTY),
        "objective.eps_high": ("5.0", EMPTY),
        "objective.clip_low": (EMPTY, "0.2"),
        "objective.clip_high": (EMPTY, "0.28"),
        "objective.reference": (EMPTY, "&#34;trainer&#34;"),
        "advantage.alpha": ("1.5", "0.05"),
        "critic.updates_per_batch": ("2", "1"),
        "critic.frozen": ("&#34;attention&#34;", "&#34;none&#34;"),
    }
    assert differences(logs, "sao", Linker()) is None


def test_sample_trajectories_are_chosen_and_shown_with_their_numbers(text: str) -> None:
    page = section(text, "row-sao")
    titles = [title.split(" ")[1] for title in re.findall(r"<h4>(.*?)</h4>", page)]
    assert titles == ["abd2", "abd2", "abc1", "abc1"], (
        "solved at the end, then unsolved, each after its start"
    )
    assert "4 of the 4 trajectories" in words(page)
    assert (
        'title="3: log-prob (nats) -2.000, ratio 0.500 masked, value 0.500, advantage -0.200, version 24"'
        in page
    )
    assert '<b class="a2 v1" title="?:' in page and '<b class="a-2 v2" title="3:' in page
    assert '<b class="a0 v4" title="!:' in page
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "No finished run of this row has a log of trajectories" in section(text, "row-grpo_dis")


@pytest.mark.parametrize(
    ("advantage", "value", "classes"),
    [
        (0.6, 0.8, ("a4", "v4")),
        (-0.6, 0.799, ("a-4", "v3")),
        (0.0199, 0.2, ("a0", "v1")),
        (-0.02, -1.0, ("a-1", "v0")),
    ],
)
def test_classes_of_colour(advantage: float, value: float, classes: tuple[str, str]) -> None:
    assert (advantage_class(advantage), value_class(value)) == classes
    assert classes[0] in dict(legend()["advantage"]) and classes[1] in dict(legend()["value"])


def test_one_evaluation_alone_shows_no_trajectory_twice() -> None:
    lines = [trajectory(24, "abc1", 1.0), trajectory(24, "abd2", 0.0), trajectory(24, "abe3", 0.0)]
    assert [line["problem_id"] for line in choose(lines)] == ["abc1", "abd2"]


def test_long_trajectories_are_cut_and_said_to_be(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cpu", "sao", 0, OURS)
    line = trajectory(120, "abc1", 1.0)
    long = {name: value * 150 if isinstance(value, list) else value for name, value in line.items()}
    append_records(path / FILE, TRAJECTORY_COLUMNS, [long])
    append_records(path / TRAINING_FILE, TRAJECTORY_COLUMNS, [trajectory(119, "abd2", 0.0)] * 3)
    evaluation, training = row_samples(load_logs(tmp_path / "cpu", ["sao"]).finished("sao"))
    (sample,) = evaluation.shown
    assert sample.left_out == 300 and len(sample.rows) == 300, "half of the 600 shown are actions"
    assert sum(len(part.tokens) for part in sample.parts) == 600
    assert "2 of the 3 trajectories of training" in training.said and len(training.shown) == 2
    assert training.shown[0].title.startswith("Problem abd2 (1 lock) in update 119")


def test_thinned_curves_keep_their_reach() -> None:
    x = np.arange(5.0)
    curve = Curve("one", x, np.array([1.0, 3.0, 5.0, 7.0, 9.0]), x - 10, x + 10, x, 3)
    two = thinned(curve, most=3)
    assert two.x.tolist() == [0.5, 2.5, 4.0] and two.mean.tolist() == [2.0, 6.0, 9.0]
    assert two.low.tolist() == [-10.0, -8.0, -6.0] and two.high.tolist() == [11.0, 13.0, 14.0]
    whole = thinned(curve, most=5)
    assert whole.mean.tolist() == curve.mean.tolist() and whole.seeds == 3


def test_drawings_keep_the_numbers_on_their_axes() -> None:
    canvas = Figure(figsize=(2, 2))
    axes = canvas.subplots()
    axes.plot([0, 1], [0, 1])
    axes.set_yticks([0.125, 0.375], ["0.125", "0.375"])
    axes.set_title("R & D")
    drawn = inline_svg(canvas, "one", "A <drawing>")
    assert re.findall(r">(0\.\d+)</text>", drawn)[-2:] == ["0.125", "0.375"]
    assert "R &amp; D" in drawn and 'aria-label="A &lt;drawing&gt;"' in drawn
    ids = re.findall(r' id="([^"]*)"', drawn)
    assert ids and all(name.startswith("one-") for name in ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', drawn)) == set(ids)
    assert inline_svg(canvas, "one", "A <drawing>") == drawn


def test_damaged_logs_give_one_message_with_file_and_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "cpu"
    shutil.copytree(results, copy)
    live = copy / "runs/vapo/seed0/metrics.jsonl"
    lines = live.read_text().splitlines()
    live.write_text("\n".join([*lines[:4], lines[4][:30], *lines[5:]]) + "\n")
    out = tmp_path / "report.html"

    def refused() -> str:
        assert run_command(lambda: main(["--runs", str(copy), "--out", str(out)])) == 2
        assert not out.exists()
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    message = refused()
    assert f"{live}: line 5: not valid JSON" in message
    live.write_text("\n".join(lines) + "\n")

    sealed = copy / "runs/sao/seed1/metrics.jsonl"
    before = sealed.read_text()
    sealed.write_text(before.replace("0.5", "0.6", 1))
    message = refused()
    assert f"{sealed}: was changed after the run was sealed" in message
    sealed.write_text(before)

    log = copy / "runs/sao/seed0" / FILE
    log.unlink()
    lines = [trajectory(24, "abc1", 1.0), trajectory(24, "abd2", 1.0, values=[0.5])]
    append_lines(log, [json.dumps(line) for line in lines])
    message = refused()
    assert f"{log}: line 2: values is not as long as token_ids" in message


@pytest.mark.parametrize(
    ("runs", "out", "message"),
    [("nowhere", "report.html", "no run here has data"), ("cpu", "cpu", "is a folder; name a file")],
)
def test_mistakes_give_one_line(
    results: Path, tmp_path: Path, runs: str, out: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = results.parent / runs
    assert run_command(lambda: main(["--runs", str(place), "--out", str(results.parent / out)])) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_evaluations_have_a_page_only_where_there_are_any(results: Path, text: str, tmp_path: Path) -> None:
    assert 'id="evaluations"' not in text
    copy = tmp_path / "cpu"
    shutil.copytree(results, copy)
    evaluate(copy / "evaluations", "sao_swe", outcomes(range(149)), scale="cpu")
    evaluate(copy / "evaluations", "grpo_dis_swe", outcomes([*range(32, 149), *range(200, 218)]), scale="cpu")

    def shown() -> list[list[dict[str, str]]]:
        page = evaluation_page(load_logs(copy, ["sao"]), Linker())
        assert page is not None
        return [
            [dict(zip(view.header, [words(cell.html) for cell in line], strict=True)) for line in view.rows]
            for view in page.tables
        ]

    scores, (comparison,) = shown()
    found = [(line["row"], line["status"], line["score"], line["paper"]) for line in scores]
    assert found == [("grpo_dis_swe", "complete", "27", "27"), ("sao_swe", "complete", "29.8", "29.8")]
    assert scores[1]["folder"] == "evaluations/sao_swe/seed0/step400/swe_bench_verified"
    # 100 sqrt((.27 x .73 + .298 x .702) / 500)
    assert (comparison["difference"], comparison["se unpaired"]) == ("-2.8", "2.8506")
    damaged = copy / "evaluations/sao_swe/seed0/step400/swe_bench_verified/samples.jsonl"
    damaged.write_text("{\n")
    with pytest.raises(AnalysisError, match=re.escape(str(damaged))):
        shown()


def test_shipped_runs_make_a_report_of_bounded_size(tmp_path: Path) -> None:
    text = write_report(LOGGED, tmp_path / "report.html")
    assert len(text.encode()) < LARGEST
    page = Page.read(text)
    assert {link[1:] for link in page.links if link.startswith("#")} - set(page.ids) == {"all"}
    assert len(page.ids) == len(set(page.ids)) and not page.unclosed
    rows = {path.name for path in LOGGED.glob("runs/*")}
    assert {name.removeprefix("row-") for name in page.ids if name.startswith("row-")} >= rows
