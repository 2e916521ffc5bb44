"""The logged LLM judge against a server made here: retries, faults, memory, log, rate limit."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from judge_server import Answer, JudgeServer

from evaluation.judging import (
    UNDECIDED,
    JudgeError,
    Judgement,
    JudgeUnavailable,
    LoggedJudge,
    RateLimit,
    read_judgements,
)


def read(reply: str) -> str:
    return reply if reply in ("yes", "no") else UNDECIDED


def scripted(answers: Sequence[Answer]) -> JudgeServer:
    """A server that gives the answers in turn, the last one for ever."""
    return JudgeServer(lambda body, number: answers[min(number, len(answers) - 1)])


def judge_at(server: JudgeServer, folder: Path, **options: object) -> LoggedJudge:
    return LoggedJudge(server.url, "j", folder / "log.jsonl", **options)  # type: ignore[arg-type]


def test_verdicts_are_logged_and_never_asked_twice(tmp_path: Path) -> None:
    with scripted(["yes", "no"]).serve() as server:
        judge = judge_at(server, tmp_path)
        first = judge.judge("Decide.", "one", read)
        assert (first.verdict, first.reply, first.model) == ("yes", "yes", "j")
        assert judge.judge("Decide.", "two", read).verdict == "no"
        assert judge.judge("Decide.", "one", read) is first
        assert judge_at(server, tmp_path).judge("Decide.", "one", read) == first
        assert len(server.requests) == 2
        # Another instruction or model is another question.
        judge.judge("Decide!", "one", read)
        LoggedJudge(server.url, "k", tmp_path / "log.jsonl").judge("Decide.", "one", read)
        assert [request["model"] for request in server.requests] == ["j", "j", "j", "k"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert set(lines[0]) == {"verdict", "model", "prompt_sha256", "reply", "latency_seconds"}
    assert lines[0]["prompt_sha256"] == first.prompt_sha256 and len(first.prompt_sha256) == 64
    assert lines[0]["latency_seconds"] >= 0


def test_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    with scripted(["yes"]).serve() as server:
        judge_at(server, tmp_path, key_variable="A_KEY").judge("Decide.", "one", read)
        (request,) = server.requests
    assert request["temperature"] == 0
    assert request["messages"] == [
        {"role": "system", "content": "Decide."},
        {"role": "user", "content": "one"},
    ]
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("faults", [[429, 500], [503, None], [408, 409]])
def test_passing_faults_are_tried_again(tmp_path: Path, faults: list[Answer]) -> None:
    with scripted([*faults, "yes"]).serve() as server:
        assert judge_at(server, tmp_path).judge("", "one", read).verdict == "yes"
        assert len(server.requests) == 3
    assert len(read_judgements(tmp_path / "log.jsonl")) == 1


def test_silence_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    with scripted([5.0, "yes"]).serve() as server:
        judge = judge_at(server, tmp_path, timeout_seconds=0.3)
        assert judge.judge("", "one", read).verdict == "yes"
    with scripted([5.0]).serve() as server:
        began = time.monotonic()
        with pytest.raises(JudgeUnavailable, match=r"judge j at http://127.0.0.1:\d+/v1/: Request timed out"):
            judge_at(server, tmp_path, timeout_seconds=0.2, retries=1).judge("", "two", read)
        assert time.monotonic() - began < 5 and len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (429, "scripted 429"),
        (500, "scripted 500"),
        (b"not json", "something else than JSON|without choices"),
        (b"{}", "without choices"),
        (b'{"choices": []}', "without choices"),
        (b'{"choices": [{}]}', "without choices"),
        (None, "Connection error"),
    ],
)
def test_lasting_faults_are_no_verdict(tmp_path: Path, answer: Answer, message: str) -> None:
    with scripted([answer]).serve() as server:
        judge = judge_at(server, tmp_path, retries=1)
        with pytest.raises(JudgeUnavailable, match=message):
            judge.judge("", "one", read)
    assert not (tmp_path / "log.jsonl").exists()


@pytest.mark.parametrize(("status", "message"), [(401, "set OPENAI_API_KEY"), (403, "key"), (404, "refuses")])
def test_faults_of_the_setup_stop_at_once(tmp_path: Path, status: int, message: str) -> None:
    with scripted([status]).serve() as server:
        with pytest.raises(JudgeError, match=message) as raised:
            judge_at(server, tmp_path).judge("", "one", read)
        assert not isinstance(raised.value, JudgeUnavailable) and "\n" not in str(raised.value)
        assert len(server.requests) == 1


def test_undecided_replies_are_asked_again_where_that_is_wanted(tmp_path: Path) -> None:
    with scripted(["maybe", "perhaps", "yes"]).serve() as server:
        judge = judge_at(server, tmp_path, attempts=2)
        assert judge.judge("", "one", read).verdict == UNDECIDED
        assert len(server.requests) == 2
        again = judge_at(server, tmp_path, attempts=2)
        assert again.judge("", "one", read).verdict == "yes"
        assert again.judge("", "one", read).verdict == "yes" and len(server.requests) == 3
    replies = [judgement.reply for judgement in read_judgements(tmp_path / "log.jsonl")]
    assert replies == ["maybe", "perhaps", "yes"]


def test_one_attempt_remembers_undecided_replies(tmp_path: Path) -> None:
    with scripted(["maybe", "yes"]).serve() as server:
        for _ in range(2):
            assert judge_at(server, tmp_path).judge("", "one", read).verdict == UNDECIDED
        assert len(server.requests) == 1


def test_logs_of_older_versions_are_read_and_damaged_ones_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    old = {"verdict": "yes", "model": "j", "prompt_sha256": "0" * 64, "reply": "yes"}
    log.write_text(json.dumps(old) + "\n")
    assert read_judgements(log) == [Judgement(**old)] and read_judgements(log)[0].latency_seconds is None
    log.write_text(json.dumps(old) + "\n" + '{"verdict": "yes"}\n')
    with pytest.raises(JudgeError, match=r"log\.jsonl:2: not a judgement; remove the line"):
        LoggedJudge("http://127.0.0.1:9/v1", "j", log)


def test_rate_limit_spaces_requests() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    limit = RateLimit(30, clock=lambda: now[0], sleep=sleep)
    limit.wait()
    limit.wait()
    now[0] += 0.5
    limit.wait()
    now[0] += 10
    limit.wait()
    assert slept == pytest.approx([2.0, 1.5])
    free = RateLimit(None, clock=lambda: now[0], sleep=sleep)
    for _ in range(5):
        free.wait()
    assert len(slept) == 2


def test_rate_limit_is_kept_by_the_judge(tmp_path: Path) -> None:
    with scripted(["yes"]).serve() as server:
        judge = judge_at(server, tmp_path, requests_per_minute=600)
        began = time.monotonic()
        for number in range(4):
            judge.judge("", str(number), read)
        assert time.monotonic() - began >= 0.3
