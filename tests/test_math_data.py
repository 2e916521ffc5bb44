"""Loading, checking, pinning and correcting benchmark rows, on made-up data shaped as the real ones."""

import csv
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from evaluation.math import data
from evaluation.math.data_checks import check_problems
from evaluation.math.problems import DataError, Problem, checksum, read_patches

COLUMNS = {"id": "Problem ID", "problem": "Problem", "answer": "Short Answer", "category": "Category"}


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "Problem ID": f"p-{n}",
            "Problem": rf"Find ${n} + \frac{{1}}{{2}}$.",
            "Short Answer": f"{n}.5",
            "Category": "Sums",
        }
        for n in range(1, count + 1)
    ]


@pytest.fixture
def project(tmp_path: Path) -> dict[str, Path]:
    """Pins, lock and cache of a small project."""
    pins = {
        "sums": {
            "title": "Sums",
            "url": "http://127.0.0.1:9/{revision}/sums.csv",
            "columns": COLUMNS,
            "rows": 3,
            "answers": "any",
            "revision": "unverified",
            "sha256": "unverified",
        }
    }
    (tmp_path / "benchmarks.yaml").write_text(yaml.safe_dump(pins))
    return {
        "pins": tmp_path / "benchmarks.yaml",
        "lock": tmp_path / "benchmarks.lock.yaml",
        "cache_dir": tmp_path / "cache",
    }


def change_pins(project: dict[str, Path], **values: Any) -> None:
    pins = yaml.safe_load(project["pins"].read_text())
    pins["sums"].update(values)
    project["pins"].write_text(yaml.safe_dump(pins))


def write_csv(folder: Path, content: list[dict[str, Any]]) -> None:
    with (folder / "sums.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(content[0]))
        writer.writeheader()
        writer.writerows(content)


def write_jsonl(folder: Path, content: list[dict[str, Any]]) -> None:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))


def write_parquet(folder: Path, content: list[dict[str, Any]]) -> None:
    pd.DataFrame(content).to_parquet(folder / "sums.parquet")


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
def test_a_folder_is_read_in_every_format_to_the_same_checksum(
    tmp_path: Path, project: dict[str, Path], write: Any
) -> None:
    write(tmp_path, rows())
    benchmark = data.load_benchmark("sums", tmp_path, **project)
    assert [problem.answer for problem in benchmark.problems] == ["1.5", "2.5", "3.5"]
    assert benchmark.problems[0] == Problem("p-1", r"Find $1 + \frac{1}{2}$.", "1.5", "Sums")
    expected = checksum([Problem(r["Problem ID"], r["Problem"], r["Short Answer"]) for r in rows()])
    assert benchmark.sha256 == expected
    assert yaml.safe_load(project["lock"].read_text())["sums"]["sha256"] == expected
    assert benchmark.patch_set is None


def test_data_that_changed_since_it_was_recorded_is_refused(tmp_path: Path, project: dict[str, Path]) -> None:
    write_jsonl(tmp_path, rows())
    data.load_benchmark("sums", tmp_path, **project)
    data.load_benchmark("sums", tmp_path, **project)
    changed = rows()
    changed[1]["Short Answer"] = "99"
    write_jsonl(tmp_path, changed)
    with pytest.raises(DataError, match=r"benchmarks\.lock\.yaml .* the data changed"):
        data.load_benchmark("sums", tmp_path, **project)


def test_data_that_differs_from_its_pin_is_refused(tmp_path: Path, project: dict[str, Path]) -> None:
    change_pins(project, sha256="0" * 64)
    write_jsonl(tmp_path, rows())
    with pytest.raises(DataError, match=r"benchmarks\.yaml has 000000000000"):
        data.load_benchmark("sums", tmp_path, **project)


def test_answers_that_look_like_missing_values_stay_text(tmp_path: Path, project: dict[str, Path]) -> None:
    content = rows()
    content[0]["Short Answer"], content[1]["Short Answer"] = "None", "070"
    write_csv(tmp_path, content)
    answers = [problem.answer for problem in data.load_benchmark("sums", tmp_path, **project).problems]
    assert answers == ["None", "070", "3.5"]


def test_integers_and_missing_ids_become_text(tmp_path: Path, project: dict[str, Path]) -> None:
    change_pins(project, columns={"problem": "problem", "answer": "answer"}, answers="integer")
    write_parquet(tmp_path, [{"problem": f"Find {n}.", "answer": n} for n in (5, 6, 7)])
    problems = data.load_benchmark("sums", tmp_path, **project).problems
    assert [(problem.id, problem.answer) for problem in problems] == [("1", "5"), ("2", "6"), ("3", "7")]


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server of the given files."""
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            body = files.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if with_body and body is not None:
                self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}", files
    web.shutdown()
    web.server_close()


def test_a_download_is_kept_for_times_without_network(
    tmp_path: Path, project: dict[str, Path], server: tuple[str, dict[str, bytes]]
) -> None:
    address, files = server
    write_csv(tmp_path, rows())
    files["/abc/sums.csv"] = (tmp_path / "sums.csv").read_bytes()
    change_pins(project, url=address + "/{revision}/sums.csv", revision="abc")
    first = data.load_benchmark("sums", **project)
    assert first.revision == "abc"
    assert first.source.endswith("/abc/sums.csv")
    assert first.problems == data.load_benchmark("sums", tmp_path, **project).problems


def test_without_network_and_folder_one_line_says_what_to_do(project: dict[str, Path]) -> None:
    with pytest.raises(DataError) as problem:
        data.load_benchmark("sums", **project)
    message = str(problem.value)
    assert "\n" not in message
    assert "sums.jsonl" in message
    assert "--data-dir" in message


@pytest.mark.parametrize(
    ("name", "message"),
    [("sums", "no file in .*; it has to hold one of sums.jsonl"), ("sum", "there are sums")],
)
def test_a_wrong_folder_or_name_is_named(
    tmp_path: Path, project: dict[str, Path], name: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        data.load_benchmark(name, tmp_path, **project)


def test_a_missing_column_is_named(tmp_path: Path, project: dict[str, Path]) -> None:
    write_jsonl(tmp_path, [{"Problem": "Find 1.", "Answer": "1"}])
    with pytest.raises(DataError, match="no column Short Answer; found Problem, Answer"):
        data.load_benchmark("sums", tmp_path, **project)


def findings(*problems: Problem, expected: int | None = None, answers: Any = "any") -> list[str]:
    return [
        str(f) for f in check_problems(problems, len(problems) if expected is None else expected, answers)
    ]


def test_sound_rows_have_no_findings() -> None:
    text = "Let $a \\ne b$.\nNow find\n$$\\frac{a}{b}.$$"
    assert findings(Problem("1", text, r"$\frac{1}{2}$"), Problem("2", "Find 2.", "2")) == []


@pytest.mark.parametrize(
    ("problem", "finding"),
    [
        (Problem("x", "Find $\frac{1}{2}$.", "5"), "error: x: the problem holds a control character"),
        (Problem("x", "Find $2 \times 3$.", "5"), "error: x: the problem holds a control character"),
        (Problem("x", "Find $a \neq b$.", "5"), "error: x: the problem holds a control character"),
        (Problem("x", "Find it.", "\x08inom{4}{2}"), "error: x: the answer holds a control character"),
        (Problem("x", "", "5"), "error: x: no problem"),
        (Problem("x", "Find it.", " "), "error: x: no answer"),
        (Problem("x", "Find $x.", "5"), "warning: x: an odd number of dollar signs in the problem"),
        (
            Problem("x", "Find x.", r"$\frac{7}{18}"),
            "warning: x: an odd number of dollar signs in the answer",
        ),
        (Problem("x", "Find x.", r"\frac{7}{18"), "warning: x: unbalanced braces in the answer"),
        (
            Problem("x", "Find x.", "45752"),
            "warning: x: 45752 is how a spreadsheet stores 05 April 2025: perhaps 4/5",
        ),
        (Problem("x", "Find x.", "Sums", "Sums"), "error: x: the answer 'Sums' is a category"),
        (Problem("x", "Find x.", "odd $n$"), "note: x: judge_only: 'odd $n$'"),
        (Problem("x", "Find x.", r"$p_1 \cdots p_k$"), "note: x: judge_only"),
    ],
)
def test_faults_are_found(problem: Problem, finding: str) -> None:
    found = findings(problem)
    assert any(line.startswith(finding) for line in found), found


def test_counts_ids_and_kinds_of_answers_are_checked() -> None:
    one, other = Problem("1", "Find 1.", "1"), Problem("1", "Find 2.", "x")
    found = findings(one, other, expected=30, answers="integer")
    assert "error: all rows: 2 rows, 30 are due" in found
    assert "error: 1: the id stands in 2 rows" in found
    assert "error: 1: the answer 'x' is no integer" in found
    assert findings(one, Problem("2", "Find 1.", "1")) == ["error: 1: the problem stands in 2 rows"]


def test_damaged_rows_are_refused_on_load(tmp_path: Path, project: dict[str, Path]) -> None:
    content = rows()
    content[2]["Problem"] = "Find $\frac{1}{2}$."
    write_jsonl(tmp_path, content)
    with pytest.raises(DataError, match="1 faults, first: error: p-3: the problem holds a control"):
        data.load_benchmark("sums", tmp_path, **project)
    assert not project["lock"].exists()


def write_patches(path: Path, was: str) -> None:
    patch = {"id": "p-2", "was": {"answer": was}, "now": {"answer": "5/2"}, "reason": "r", "source": "s"}
    path.write_text(yaml.safe_dump({"name": "sums.patch1", "benchmark": "sums", "patches": [patch]}))


def test_patches_apply_to_the_row_they_were_made_for_and_name_themselves(
    tmp_path: Path, project: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "PATCHES", tmp_path)
    change_pins(project, patches="sums.yaml")
    write_patches(tmp_path / "sums.yaml", was="2.5")
    write_jsonl(tmp_path, rows())
    patched = data.load_benchmark("sums", tmp_path, **project)
    plain = data.load_benchmark("sums", tmp_path, patched=False, **project)
    assert [problem.answer for problem in patched.problems] == ["1.5", "5/2", "3.5"]
    assert [problem.answer for problem in plain.problems] == ["1.5", "2.5", "3.5"]
    assert (patched.patch_set, plain.patch_set) == ("sums.patch1", None)
    assert patched.sha256 == plain.sha256
    write_patches(tmp_path / "sums.yaml", was="2.6")
    with pytest.raises(DataError, match=r"p-2 has answer '2\.5', not '2\.6'"):
        data.load_benchmark("sums", tmp_path, **project)


def test_patches_without_source_are_refused(tmp_path: Path) -> None:
    patch = {"id": "p-2", "was": {"answer": "1"}, "now": {"answer": "2"}, "reason": "r"}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({"name": "n", "patches": [patch]}))
    with pytest.raises(DataError, match=r"needs id, was, now .*, reason, source"):
        read_patches(tmp_path / "p.yaml")


def test_the_shipped_patches_correct_what_the_owner_published() -> None:
    patches = read_patches(data.PATCHES / "imo_answerbench_v2.yaml")
    published = {
        "imo-bench-algebra-036": ("Algebra", "Functional Equation"),
        "imo-bench-geometry-004": ("45752", "Geometry"),
        "imo-bench-geometry-096": (r"$\frac{7}{18}", "Geometry"),
        "imo-bench-algebra-097": (
            r"$\lfloor\varphi n\rfloor$, where $\varphi = \frac{\sqrt{5}+1}{2}",
            "Algebra",
        ),
    }
    problems = [Problem(key, f"Find {key}.", *values) for key, values in published.items()]
    corrected = {problem.id: problem for problem in patches.apply(problems)}
    assert corrected["imo-bench-algebra-036"].answer == r"$Y(x)=A+\frac{B}{x}-x$"
    assert corrected["imo-bench-algebra-036"].category == "Algebra"
    assert corrected["imo-bench-geometry-004"].answer == "4, 5"
    assert corrected["imo-bench-geometry-096"].answer == r"$\frac{7}{18}$"
    assert [entry["id"] for entry in patches.reviewed] == ["imo-bench-number_theory-048"]
    assert all(finding.severity == "note" for finding in check_problems(list(corrected.values()), 4, "any"))


def test_the_pins_name_the_four_benchmarks_with_their_row_counts() -> None:
    pins = yaml.safe_load(data.PINS.read_text())
    counts = {name: pin["rows"] for name, pin in pins.items()}
    assert counts == {
        "aime_2025": 30,
        "hmmt_nov_2025": 30,
        "beyond_aime": 100,
        "imo_answerbench": 400,
        "imo_answerbench_v1": 400,
    }
    for name, pin in pins.items():
        assert pin["sha256"] == "unverified" or len(pin["sha256"]) == 64, name
        assert "patches" not in pin or (data.PATCHES / pin["patches"]).exists()


def test_the_command_prints_findings_and_tells_faults_by_its_exit_code(
    tmp_path: Path,
    project: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(data, "PINS", project["pins"])
    monkeypatch.setattr(data, "LOCK", project["lock"])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    content = rows()
    content[0]["Short Answer"] = "odd $n$"
    write_jsonl(tmp_path, content)
    assert data.main(["check", "sums", "--data-dir", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "note: p-1: judge_only: 'odd $n$'" in output
    assert "0 errors, 0 warnings, 1 judge_only" in output
    content[1]["Problem ID"] = "p-1"
    write_jsonl(tmp_path, content)
    project["lock"].unlink()
    assert data.main(["check", "sums", "--data-dir", str(tmp_path)]) == 1
    assert "error: p-1: the id stands in 2 rows" in capsys.readouterr().out
    assert data.main(["check", "sums", "--data-dir", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
