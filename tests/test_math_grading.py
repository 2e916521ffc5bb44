"""Grading: the table of pairs worked out by hand, the graders' vote, killed workers, regrading, the judge."""

import csv
import http.server
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evaluation.math import grading, grading_pool
from evaluation.math.graders import Ballot, Pair, grade_pair
from evaluation.math.grading import Grade, Grader
from evaluation.math.grading_pool import LIMIT_SECONDS, GradingPool, StartFailure, WorkerFailure
from evaluation.math.judge import INSTRUCTION, Judge, JudgeError
from evaluation.math.verdicts import Opinion

PAIRS = Path(__file__).parent / "data" / "grading_pairs.csv"
FORMATS = {
    "integer",
    "fraction",
    "radical",
    "expression",
    "set",
    "interval",
    "tuple",
    "function",
    "words",
} | {
    "several answers",
    "equation",
}


def read_pairs() -> list[dict[str, str]]:
    with PAIRS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(workers=2) as grader:
        yield grader


def as_response(prediction: str) -> str:
    return prediction if r"\boxed" in prediction else rf"The answer is $\boxed{{{prediction}}}$."


@pytest.fixture(scope="module")
def voted(grader: Grader) -> list[tuple[dict[str, str], Grade]]:
    """Every pair of the table with its grade by vote."""
    pairs = read_pairs()
    answers = [
        ("imo_answerbench", pair["gold"], pair["prediction"])
        for pair in pairs
        if "boxed" not in pair["prediction"]
    ]
    grader.prepare(answers)
    return [
        (pair, grader.grade("imo_answerbench", pair["gold"], as_response(pair["prediction"])))
        for pair in pairs
    ]


def errors(graded: list[tuple[dict[str, str], str]]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """False positives and false negatives. A pair that only its problem decides must not be called right."""
    false_positives = [pair for pair, verdict in graded if verdict == "right" and pair["expected"] != "right"]
    false_negatives = [pair for pair, verdict in graded if verdict != "right" and pair["expected"] == "right"]
    return false_positives, false_negatives


def test_the_table_holds_enough_pairs_of_every_format() -> None:
    pairs = read_pairs()
    assert len({(pair["gold"], pair["prediction"]) for pair in pairs}) == len(pairs) >= 300
    expected = Counter(pair["expected"] for pair in pairs)
    assert set(expected) == {"right", "wrong", "undecided"}
    assert expected["wrong"] >= 60
    assert Counter(pair["format"] for pair in pairs).keys() == FORMATS
    assert all(pair["why"] for pair in pairs)


def test_the_vote_has_no_false_positive_and_few_false_negatives(
    voted: list[tuple[dict[str, str], Grade]],
) -> None:
    false_positives, false_negatives = errors([(pair, grade.verdict) for pair, grade in voted])
    assert false_positives == []
    rights = sum(pair["expected"] == "right" for pair, _ in voted)
    assert len(false_negatives) <= 0.02 * rights, false_negatives


def test_the_exact_grader_alone_has_no_false_positive_and_few_false_negatives(
    voted: list[tuple[dict[str, str], Grade]],
) -> None:
    graded = [(pair, grade.votes.get("exact", grade)) for pair, grade in voted]
    false_positives, false_negatives = errors([(pair, opinion.verdict) for pair, opinion in graded])
    assert false_positives == []
    assert len(false_negatives) <= 0.02 * sum(pair["expected"] == "right" for pair, _ in voted)


def test_guarded_math_verify_is_never_wrong_where_it_decides(
    voted: list[tuple[dict[str, str], Grade]],
) -> None:
    opinions = [
        (pair, grade.votes["math_verify"].verdict) for pair, grade in voted if "math_verify" in grade.votes
    ]
    decided = [(pair["expected"], verdict) for pair, verdict in opinions if verdict != "undecided"]
    assert all(expected == verdict for expected, verdict in decided)
    assert len(decided) > 0.3 * len(opinions)


def test_nearly_all_wrong_answers_are_called_wrong(voted: list[tuple[dict[str, str], Grade]]) -> None:
    verdicts = [grade.verdict for pair, grade in voted if pair["expected"] == "wrong"]
    assert verdicts.count("wrong") >= 0.98 * len(verdicts)


def test_pairs_that_graders_were_reported_to_misjudge_have_their_verdicts(
    voted: list[tuple[dict[str, str], Grade]],
) -> None:
    """Without exception: the few errors that are allowed above are none of these."""
    reported = [(pair, grade.verdict) for pair, grade in voted if pair["why"].startswith("reported pair")]
    assert len(reported) >= 25
    assert [(pair, verdict) for pair, verdict in reported if verdict != pair["expected"]] == []


def test_pairs_that_only_the_problem_decides_stay_undecided(
    voted: list[tuple[dict[str, str], Grade]],
) -> None:
    open_pairs = [grade.verdict for pair, grade in voted if pair["expected"] == "undecided"]
    assert open_pairs.count("undecided") == len(open_pairs)


@pytest.mark.parametrize(
    ("gold", "answer", "decimals", "verdict"),
    [
        (r"1-\frac{2}{\pi}", "0.36338", False, "wrong"),
        (r"1-\frac{2}{\pi}", "0.36338", True, "right"),
        (r"1-\frac{2}{\pi}", "x = 0.3634", True, "right"),
        (r"1-\frac{2}{\pi}", "0.3633", True, "wrong"),  # rounds to 0.3634
        (r"1-\frac{2}{\pi}", "0.4", True, "wrong"),  # one digit says too little
        (r"-\frac{1}{3}", "-0.333", True, "right"),
        (r"-\frac{1}{3}", "0.333", True, "wrong"),
    ],
)
def test_rounded_decimals_count_on_request(gold: str, answer: str, decimals: bool, verdict: str) -> None:
    assert grade_pair(Pair(gold, answer, decimals=decimals)).opinion.verdict == verdict


def test_a_split_vote_is_undecided_and_lists_both_opinions() -> None:
    split = {"exact": Opinion("right", "a"), "math_verify": Opinion("wrong", "b")}
    assert Ballot(Opinion("undecided", ""), split).disagreement
    assert not Ballot(Opinion("right", ""), {**split, "math_verify": Opinion("undecided", "b")}).disagreement


def test_the_graders_split_where_one_of_them_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "evaluation.math.graders.grade_with_math_verify", lambda *_: Opinion("wrong", "misread")
    )
    ballot = grade_pair(Pair(r"\frac{1}{2}", r"\frac{2}{4}", vote=True))
    assert ballot.opinion.verdict == "undecided"
    assert "graders disagree" in ballot.opinion.reason
    assert ballot.disagreement
    assert grade_pair(Pair(r"\frac{1}{2}", r"\frac{2}{4}")).opinion.verdict == "right"


# Workers --------------------------------------------------------------------------------------------------

TOWER = r"$\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}$"  # hangs in C code, where no signal handler runs


def task(what: int | str) -> int:
    """A task for a pool: squares numbers, and misbehaves on request."""
    if what == "hang":
        from math_verify import parse, verify

        return int(
            verify(
                parse("$1$", parsing_timeout=None), parse(TOWER, parsing_timeout=None), timeout_seconds=None
            )
        )
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise LookupError("no such thing")
    if what == "memory":
        return len(bytearray(1 << 40))
    return int(what) ** 2


def test_a_hanging_task_is_killed_and_stops_no_other() -> None:
    assert LIMIT_SECONDS == 10
    with GradingPool(task, workers=2, limit_seconds=2) as pool:
        assert pool.submit(3).result() == 9  # the workers are up
        start = time.monotonic()
        hanging = pool.submit("hang")
        others = pool.map(range(200))
        assert [future.result() for future in others] == [n**2 for n in range(200)]
        assert not hanging.done()
        with pytest.raises(WorkerFailure, match="timeout: no result within 2 s"):
            hanging.result()
        assert time.monotonic() - start < 8
        assert pool.submit(4).result() == 16


def test_a_dying_or_failing_task_costs_nothing_else() -> None:
    with GradingPool(task, workers=1, limit_seconds=20) as pool:
        dying, failing, greedy, sound = pool.map(["die", "raise", "memory", 5])
        with pytest.raises(WorkerFailure, match="the worker died"):
            dying.result()
        with pytest.raises(LookupError, match="no such thing"):
            failing.result()
        with pytest.raises(MemoryError):
            greedy.result()
        assert sound.result() == 25


def test_grading_works_from_threads(grader: Grader) -> None:
    responses = [r"\boxed{45}", r"\boxed{5 \cdot 9}", r"\boxed{46}", r"\boxed{\frac{90}{2}}"] * 5
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda text: grader.grade("aime_2025", "45", text).verdict, responses))
    assert verdicts == ["right", "right", "wrong", "right"] * 5


def test_a_lost_second_grader_leaves_the_first_ones_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    with Grader(workers=1) as grader:

        def ballot(pair: Pair) -> Any:
            class Answer:
                def result(self) -> Ballot:
                    if not pair.exact_only:
                        raise WorkerFailure("timeout: no result within 10 s")
                    return grade_pair(pair)

            return Answer()

        monkeypatch.setattr(grader, "_ballot", ballot)
        decided = grader.grade("imo_answerbench", r"\sqrt{4}", r"\boxed{1+1}")
        assert (decided.verdict, decided.votes["math_verify"].verdict) == ("right", "undecided")
        lost = grader.grade("imo_answerbench", "odd $n$", r"\boxed{2k+1}")
        assert (lost.verdict, lost.reason) == ("undecided", "timeout: no result within 10 s")


def test_processes_that_do_not_start_give_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is known of the answer then: it is no undecided one, and another attempt may succeed."""
    with Grader(workers=1) as grader:
        with monkeypatch.context() as patch:
            patch.setattr(grading_pool, "START_SECONDS", 0.0)
            with pytest.raises(StartFailure, match=r"processes that grade do not start: not ready in 0 s"):
                grader.grade("hmmt_nov_2025", r"\frac{1}{2}", r"\boxed{0.5}")
            path = write(tmp_path / "s.jsonl", [sample("1/2", r"\boxed{0.5}", benchmark="hmmt_nov_2025")])
            assert grading.main(["regrade", str(path), "--workers", "1"]) == 2
            assert capsys.readouterr().err.count("\n") == 1
            assert not (tmp_path / "s.graded.jsonl").exists()
        assert grader.grade("hmmt_nov_2025", r"\frac{1}{2}", r"\boxed{0.5}").verdict == "right"


# Regrading ------------------------------------------------------------------------------------------------


def sample(
    gold: str, response: str, benchmark: str = "aime_2025", finish: str = "stop", **more: Any
) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "problem_id": "7",
        "run_index": 0,
        "gold": gold,
        "response_text": response,
        "finish_reason": finish,
        **more,
    }


def write(path: Path, samples: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in samples))
    return path


def test_regrading_adds_verdicts_and_needs_nothing_but_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [
        sample("016", r"\boxed{16}", tokens=812),
        sample("16", r"<think>\boxed{16}", finish="length"),
        sample("16", "It is 16."),
        sample(r"\frac{1}{2}", r"\boxed{0.5}", benchmark="hmmt_nov_2025"),
        sample("4, 5", r"\boxed{\{5, 4\}}", benchmark="imo_answerbench"),
        sample("odd $n$", r"\boxed{2k+1}", benchmark="imo_answerbench"),
    ]
    path = write(tmp_path / "samples.jsonl", samples)
    assert grading.main(["regrade", str(path), "--workers", "1", "--lenient"]) == 0
    graded = [json.loads(line) for line in (tmp_path / "samples.graded.jsonl").read_text().splitlines()]
    assert [line["verdict"] for line in graded] == ["right", "wrong", "wrong", "right", "right", "undecided"]
    assert [line["answer_status"] for line in graded] == [
        "answered",
        "truncated",
        "no_answer",
        *["answered"] * 3,
    ]
    assert [line["lenient_verdict"] for line in graded][:3] == ["right", "wrong", "right"]
    assert graded[0]["tokens"] == 812
    assert graded[3]["extracted_answer"] == "0.5"
    assert set(graded[4]["votes"]) == {"exact", "math_verify"}
    assert "imo_answerbench: 2 samples, 1 right, 0 wrong" in capsys.readouterr().out
    again = write(tmp_path / "again.jsonl", graded)
    assert grading.main(["regrade", str(again), "--workers", "1", "--lenient"]) == 0
    assert (tmp_path / "again.graded.jsonl").read_text() == (tmp_path / "samples.graded.jsonl").read_text()


def test_the_summary_lists_disagreements() -> None:
    votes = {"exact": {"verdict": "right", "reason": ""}, "math_verify": {"verdict": "wrong", "reason": ""}}
    graded = sample("1/2", "", benchmark="imo_answerbench") | {
        "verdict": "undecided",
        "extracted_answer": "2/4",
        "answer_status": "answered",
        "votes": votes,
        "disagreement": True,
    }
    text = grading.summary([graded])
    assert "the graders disagree on 1" in text
    assert "7 run 0: gold '1/2', answer '2/4': exact right, math_verify wrong" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"benchmark": "x"', ":1: not JSON"),
        (
            '{"benchmark": "x", "gold": "1"}',
            ":1: no field problem_id, run_index, response_text, finish_reason",
        ),
        (None, "No such file"),
    ],
)
def test_a_bad_samples_file_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "samples.jsonl"
    if content is not None:
        path.write_text(content + "\n")
    assert grading.main(["regrade", str(path), "--workers", "1"]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1
    assert not (tmp_path / "samples.graded.jsonl").exists()


# The judge ------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A chat endpoint that calls answers with an odd number correct; its requests are recorded."""
    requests: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            verdict = "Correct" if "2k+1" in body["messages"][-1]["content"] else "Incorrect"
            message = {"role": "assistant", "content": rf"Both name the odd numbers. \boxed{{{verdict}}}"}
            reply = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
            content = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}/v1", requests
    web.shutdown()
    web.server_close()


def test_the_judge_settles_undecided_samples_and_is_asked_once(
    tmp_path: Path, endpoint: tuple[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, requests = endpoint
    words = {"benchmark": "imo_answerbench", "problem": "Find all n."}
    samples = [
        sample("odd $n$", r"\boxed{2k+1}", **words),
        sample("odd $n$", r"\boxed{2k+1}", **words),
        sample("odd $n$", r"\boxed{2k}", **words),
        sample("16", r"\boxed{16}"),
    ]
    path = write(tmp_path / "samples.jsonl", samples)
    command = ["regrade", str(path), "--workers", "1", "--judge-url", url, "--judge-model", "j"]
    assert grading.main(command) == 0
    assert "judge: 2 right, 1 wrong" in capsys.readouterr().out
    graded = [json.loads(line) for line in (tmp_path / "samples.graded.jsonl").read_text().splitlines()]
    assert [line["verdict"] for line in graded] == ["undecided", "undecided", "undecided", "right"]
    assert [line["judge"]["verdict"] for line in graded[:3]] == ["right", "right", "wrong"]
    assert len(graded[0]["judge"]["prompt_sha256"]) == 64
    assert "judge" not in graded[3]
    assert len(requests) == 2
    assert all(request["temperature"] == 0 for request in requests)
    assert requests[0]["messages"][0]["content"] == INSTRUCTION
    assert grading.main(command) == 0
    assert len(requests) == 2


def test_a_judge_that_cannot_be_asked_is_named_in_one_line(tmp_path: Path) -> None:
    judge = Judge("http://127.0.0.1:9/v1", "j", tmp_path / "judge.jsonl", timeout_seconds=1)
    with pytest.raises(JudgeError, match=r"judge j at http://127\.0\.0\.1:9/v1/: Connection error"):
        judge.ask("Find all n.", "odd $n$", "2k+1")
    with pytest.raises(JudgeError, match="carry no `problem` text"):
        judge.ask("", "odd $n$", "2k+1")
    assert not (tmp_path / "judge.jsonl").exists()


def test_a_judge_with_a_prompt_of_the_users(
    tmp_path: Path, endpoint: tuple[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, requests = endpoint
    words = {"benchmark": "imo_answerbench", "problem": "Find all {answer} n."}
    path = write(tmp_path / "samples.jsonl", [sample("odd $n$", r"\boxed{2k+1}", **words)])
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("P {problem}\nS {answer}\nG {gold}\nEnd with \\boxed{Correct} or \\boxed{Incorrect}.")
    command = ["regrade", str(path), "--workers", "1", "--judge-url", url, "--judge-model", "j"]
    command += ["--judge-prompt", str(prompt)]
    body = Judge(url, "j", tmp_path / "j.jsonl", prompt=prompt)
    with pytest.raises(JudgeError, match="carry no `problem`"):
        body.ask("", "odd", "2k+1")
    assert grading.main(command) == 0
    assert "judge: 1 right" in capsys.readouterr().out
    (request,) = requests
    assert request["messages"] == [
        {
            "role": "user",
            "content": "P Find all {answer} n.\nS 2k+1\nG odd $n$\n"
            "End with \\boxed{Correct} or \\boxed{Incorrect}.",
        }
    ]
    prompt.write_text("P {problem}")
    assert grading.main(command) == 2
    assert "has no place for {gold}, {answer}" in capsys.readouterr().err
    assert grading.main([*command[:-1], str(tmp_path / "none.txt")]) == 2
    assert "none.txt: cannot be read" in capsys.readouterr().err


def test_a_judge_needs_both_address_and_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "samples.jsonl", [sample("1", r"\boxed{1}")])
    assert grading.main(["regrade", str(path), "--judge-url", "http://127.0.0.1:9"]) == 2
    assert "--judge-model" in capsys.readouterr().err
