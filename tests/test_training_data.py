"""Sets to train on: overlap with benchmarks, pins and lock, on files made here."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation import training_data
from evaluation.data_files import DataError, read_pins, record
from evaluation.math import data as benchmarks
from evaluation.overlap import BenchmarkIndex, words

PROBLEM = (
    "Find the number of positive integers less than one hundred that are divisible by seven but not by two."
)
NEAR = f"Competition 2025. {PROBLEM} Give your answer as an integer."
OTHER = "Compute the sum of the first ten odd primes and write it in base nine, then reverse its digits once."


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One set of problems and one benchmark, as local files with their pins."""
    pin = {
        "title": "Sums",
        "hub": "nobody/sums",
        "split": "train",
        "revision": "unverified",
        "sha256": "unverified",
    }
    sums = pin | {"loader": "problems", "columns": {"id": "key", "text": "problem", "answer": "answer"}}
    texts = pin | {"loader": "texts", "columns": {"text": "prompt"}, "benchmarks": []}
    contest = pin | {
        "columns": {"id": "key", "problem": "problem", "answer": "answer"},
        "rows": 2,
        "answers": "any",
    }
    sets = {"sums": sums | {"benchmarks": ["contest"]}, "texts": texts}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(sets))
    (tmp_path / "benchmarks.yaml").write_text(yaml.safe_dump({"contest": contest}))
    for module, files in ((training_data, ("SETS", "data")), (benchmarks, ("PINS", "benchmarks"))):
        monkeypatch.setattr(module, files[0], tmp_path / f"{files[1]}.yaml")
        monkeypatch.setattr(module, "LOCK", tmp_path / f"{files[1]}.lock.yaml")
    original = benchmarks.load_benchmark

    def load_benchmark(name: str, folder: Path | None) -> Any:
        places = {"pins": tmp_path / "benchmarks.yaml", "lock": tmp_path / "benchmarks.lock.yaml"}
        return original(name, folder, cache_dir=tmp_path / "cache", **places)

    monkeypatch.setattr(training_data, "load_benchmark", load_benchmark)
    write(tmp_path, "contest", [row("c1", PROBLEM, "7"), row("c2", OTHER, "8")])
    return tmp_path


def row(key: str, problem: str, answer: str) -> dict[str, str]:
    return {"key": key, "problem": problem, "answer": answer}


def write(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))


def load(folder: Path, name: str = "sums") -> training_data.TrainingSet:
    places = {"sets": folder / "data.yaml", "lock": folder / "data.lock.yaml", "cache_dir": folder / "cache"}
    return training_data.load(name, folder, benchmarks_dir=folder, **places)


def test_words_are_the_same_however_the_text_is_set() -> None:
    assert (
        words(r"Let  $x \left( 2 \right)$ be\, PRIME!")
        == words("let x(2) be prime")
        == ("let", "x", "2", "be", "prime")
    )


def test_a_text_of_seventeen_words_has_ten_sequences() -> None:
    """Half of a problem's sequences make it the same problem: 5 of 10 do, 4 do not."""
    problem = [f"w{number}" for number in range(17)]
    index = BenchmarkIndex()
    index.add("b", [("p", " ".join(problem))])
    half = " ".join(problem[:12])  # 5 sequences
    assert index.find("r", half).share == 0.5
    assert index.find("r", " ".join(problem[:11])) is None
    assert index.find("r", " ".join(problem)).share == 1.0


def test_short_problems_overlap_where_they_are_equal() -> None:
    index = BenchmarkIndex()
    index.add("b", [("p", "What is 2 + 3?")])
    assert index.find("r", "what is $2+3$").problem == "p"
    assert index.find("r", "What is 2 + 4?") is None


def test_overlapping_and_repeated_rows_are_not_trained_on(project: Path) -> None:
    write(
        project,
        "sums",
        [
            row("a", PROBLEM, "7"),
            row("b", NEAR, "7"),
            row("c", "What is 1 + 1?", "2"),
            row("d", "What is 1 + 1?", "2"),
            row("e", "How many of the first ten primes are odd?", "9"),
        ],
    )
    found = load(project)
    assert [(overlap.row, overlap.benchmark, overlap.problem) for overlap in found.overlaps] == [
        ("a", "contest", "c1"),
        ("b", "contest", "c1"),
    ]
    assert [kept.id for kept in found.kept] == ["c", "e"] and found.repeated == 1
    entry = yaml.safe_load((project / "data.lock.yaml").read_text())["sums"]
    assert (entry["rows"], entry["kept"], entry["overlaps"]) == (5, 2, {"contest": 2})
    assert (entry["revision"], entry["licence_on_card"]) == ("unverified", "unverified"), (
        "a local copy shows neither"
    )


def test_changed_data_is_refused(project: Path) -> None:
    write(project, "sums", [row("a", "What is 1 + 1?", "2")])
    load(project)
    load(project)
    write(project, "sums", [row("a", "What is 1 + 1?", "3")])
    with pytest.raises(DataError, match=r"data\.lock\.yaml has .*the data changed"):
        load(project)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"key": "a", "problem": "x"}], "no column answer; found key, problem"),
        ([row("a", " ", "1")], "row 1 has no problem; remove or repair it"),
        ([row("a", "x", "1"), row("a", "y", "1")], "the column key repeats ids; name another"),
    ],
)
def test_faults_in_the_rows_name_the_mend(project: Path, rows: list[dict[str, str]], message: str) -> None:
    write(project, "sums", rows)
    with pytest.raises(DataError, match=message):
        load(project)
    assert not (project / "data.lock.yaml").exists()


def test_texts_have_row_numbers_as_ids_and_no_answers(project: Path) -> None:
    write(project, "texts", [{"prompt": "A dragon."}, {"prompt": "A lamp."}])
    assert [(kept.id, kept.text, kept.answer) for kept in load(project, "texts").kept] == [
        ("1", "A dragon.", ""),
        ("2", "A lamp.", ""),
    ]


def test_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "sums", [row("a", NEAR, "7"), row("b", "What is 1 + 1?", "2")])
    folders = ["--data-dir", str(project), "--benchmarks-dir", str(project)]
    assert training_data.main(["check", "sums", *folders]) == 0
    printed = capsys.readouterr().out
    assert "row a is c1 of contest (shares 100%)" in printed
    assert "2 rows from sums.jsonl at unverified, 1 in a benchmark, 0 repeated, 1 to train on" in printed
    out = project / "out" / "sums.jsonl"
    assert training_data.main(["fetch", "sums", *folders, "--out", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"id": "b", "text": "What is 1 + 1?", "answer": "2"}
    ]
    capsys.readouterr()
    for arguments, message in (
        (["check", "sum"], "data.yaml: no set sum; did you mean sums?"),
        (["check", "texts", "--data-dir", str(project / "out")], "texts: no file in"),
    ):
        assert training_data.main(arguments) == 2
        assert message in capsys.readouterr().err


def test_every_use_of_a_scale_has_a_set_with_licence_size_and_benchmarks() -> None:
    from sao.config import load_scale, scale_names

    sets = yaml.safe_load((training_data.REPOSITORY / "experiments" / "data.yaml").read_text())
    used = set()
    for name in scale_names():
        scale = load_scale(name)
        used |= {task.data for _, task in scale.tasks if task is not None and hasattr(task, "data")}
        used |= {scale.sft.data} if scale.sft else set()
    assert used == set(sets)
    for name, entry in sets.items():
        assert all(entry[key] for key in ("use", "title", "hub", "split", "loader", "licence", "size")), name
        assert entry["revision"] == entry["sha256"] == "unverified", (
            "pin what was read, and record it in the lock"
        )
    assert sets["math_prompts"]["benchmarks"] == list(load_scale("paper_math").tasks.reasoning.benchmarks)


def test_fetched_rows_are_read_as_they_were_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row("a", "one\u2028two", "1"), row("b", NEAR, "7"), row("c", 'Say "x".\nOr y.', "x")]
    write(project, "sums", rows)
    results = str(project / "results")
    out = str(training_data.fetched_file("sums", results))
    folders = ["--data-dir", str(project), "--benchmarks-dir", str(project)]
    assert training_data.main(["fetch", "sums", *folders, "--out", out]) == 0
    found = training_data.fetched_rows("sums", results)
    assert [(kept.id, kept.text, kept.answer) for kept in found] == [
        ("a", "one\u2028two", "1"),
        ("c", 'Say "x".\nOr y.', "x"),
    ]
    Path(out).write_text(Path(out).read_text().replace('"x"}', '"y"}'))
    with pytest.raises(DataError, match=r"other rows than data\.lock\.yaml records for sums; fetch it: "):
        training_data.fetched_rows("sums", results)
    Path(out).write_bytes(b"\xff")
    with pytest.raises(DataError, match="cannot be read"):
        training_data.fetched_rows("sums", results)


def test_sets_that_are_fetched_at_once_are_all_recorded(tmp_path: Path) -> None:
    lock = tmp_path / "data.lock.yaml"
    names = [f"set_{number}" for number in range(20)]
    start = threading.Barrier(len(names))

    def fetch(name: str) -> None:
        start.wait()
        record(lock, name, {"rows": 1})

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(fetch, names))
    assert read_pins(lock) == {name: {"rows": 1} for name in names}
    assert [file.name for file in tmp_path.iterdir()] == [lock.name]
