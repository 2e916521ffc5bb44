"""The runner: complete and resumable evaluations, failures apart from answers, and one clear message each."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from math_standins import PlainGrade, PlainTool, ScriptedModel, says, tokenizer

from evaluation.endpoint import EndpointFailure
from evaluation.math import plan, protocol, runner
from evaluation.math.conversation import Attempt, seeds
from evaluation.math.runner import Runner, main
from evaluation.math.store import SamplesMissing, SampleStore, StoreError, read_evaluation, read_samples
from evaluation.math.synthetic import load_synthetic
from sao.environments.python_math import Interpreter, Outcome, Problem

ROOT = Path(__file__).parents[1]
PROBLEMS = load_synthetic("aime_2025")
ANSWERS = {problem.text: problem.answer for problem in PROBLEMS}


def solves(problem_id: str, run: int) -> bool:
    """Which samples the scripted model gets right: about three of four."""
    return bool(seeds(0, problem_id, run)(0) % 4)


def solve(prompt: str, seed: int) -> str:
    question = re.findall(r"user\n(.*?)\n\n", prompt, re.DOTALL)[-1]
    return says(ANSWERS[question] if seed % 4 else "1000")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results with the folder of a policy: what an evaluation at an endpoint reads of it."""
    folder = tmp_path / "smoke_math" / "prepare" / "arithmetic" / "warm_start" / "policy"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen3_moe"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    tokenizer().save_pretrained(folder)
    return tmp_path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol of 3 problems with 2 runs each, and the tool of the tests."""
    benchmark = protocol.Benchmark("aime_2025", "AIME 2025", "AIME2025", 3, 2)
    monkeypatch.setitem(protocol.BENCHMARKS, "aime_2025", benchmark)
    monkeypatch.setattr(plan, "PythonTool", lambda sandbox: NoTool())
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.0)


class NoTool(PlainTool):
    def __enter__(self) -> "NoTool":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def words(results: Path, url: str, *more: str) -> list[str]:
    where = [
        "--row",
        "sft_python",
        "--scale",
        "smoke_math",
        "--results",
        str(results),
        "--benchmark",
        "aime_2025",
    ]
    return [*where, "--endpoint", url, "--model", "scripted", *more]


def folder_of(results: Path, row: str = "sft_python") -> Path:
    return results / "smoke_math" / "evaluations" / row / "seed0" / "step0" / "aime_2025"


def test_480_samples_survive_kill_and_faults(results: Path) -> None:
    """Killed in the middle, started again: 30 x 16 samples, none lost, none twice, each as it must be."""
    faults = {7: 429, 20: 500, 21: 503, 150: 429, 300: 500}
    model = ScriptedModel(solve, faults)
    folder = folder_of(results, "sft_no_python")
    with model.serve() as url:
        command = [
            sys.executable,
            "-m",
            "evaluation.math.runner",
            *words(results, url, "--row", "sft_no_python"),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
        while len(lines(folder)) < 100 and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before = lines(folder)
        assert 100 <= len(before) < 480 and not (folder / "seal.json").exists()
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "480/480 samples" in done.stdout
    after = lines(folder)
    assert after[: len(before)] == before, "finished samples are kept as they are"
    found = {(sample["problem_id"], sample["run_index"]): sample for sample in map(json.loads, after)}
    assert len(after) == len(found) == 480
    assert {key: sample["verdict"] == "right" for key, sample in found.items()} == {
        (problem.problem_id, run): solves(problem.problem_id, run)
        for problem in PROBLEMS
        for run in range(16)
    }
    evaluation = read_evaluation(folder)
    assert evaluation.sealed
    assert [score["run_index"] for score in evaluation.scores] == list(range(16)) * 30
    # Samples that were under way at the kill were asked for twice; nothing else was.
    assert 480 + len(faults) <= len(model.requests) <= 480 + len(faults) + 64


def lines(folder: Path) -> list[bytes]:
    """Complete lines of the sample file."""
    file = folder / "samples.jsonl"
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1].splitlines()


@pytest.mark.usefixtures("small")
def test_a_small_evaluation_from_start_to_seal(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(solve)
    with model.serve() as url:
        assert main(words(results, url)) == 0
        assert "6/6 samples" in capsys.readouterr().out
        assert main(words(results, url)) == 0
        assert "is finished" in capsys.readouterr().out
    assert len(model.requests) == 6
    folder = folder_of(results)
    sample = next(read_samples(folder))
    assert sample["messages"][0]["content"] == sample["response_text"]
    assert sample["mean_logprob"] == -0.5
    assert (sample["turns"], sample["finish_reason"], sample["tool_calls"]) == (1, "stop", 0)
    assert "messages" not in read_evaluation(folder).scores[0]
    spec = read_evaluation(folder).spec
    assert spec["protocol"]["temperature"] == spec["protocol"]["top_p"] == 1.0
    assert spec["samples"] == {problem.problem_id: 2 for problem in PROBLEMS[:3]}
    (attempt,) = json.loads((folder / "provenance.json").read_text())["attempts"]
    assert attempt["command"].startswith("python -m evaluation.math.runner --row sft_python")
    assert {"openai", "math-verify", "datasets", "transformers"} <= attempt["packages"].keys()
    assert attempt["data"]["source"] == "synthetic" and attempt["data"]["patch_set"] is None


@pytest.mark.usefixtures("small")
def test_a_mistake_in_the_middle_keeps_the_samples(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cut(choice: dict[str, Any]) -> None:
        choice["token_ids"], choice["finish_reason"] = choice["token_ids"][:4], "length"
        choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:4]

    with ScriptedModel(solve, {3: cut}).serve() as url:
        assert main(words(results, url, "--concurrency", "1")) == 2
    said = capsys.readouterr()
    assert "cuts after 4 tokens" in said.err and "3/6 samples" in said.out
    assert len(lines(folder_of(results))) == 3
    assert "cuts after 4 tokens" in read_evaluation(folder_of(results)).failure
    with ScriptedModel(solve).serve() as url:  # another port: the address is no part of what is measured
        assert main(words(results, url)) == 0
    assert len(lines(folder_of(results))) == 6
    assert not (folder_of(results) / "failure.json").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--row", "sft_pyton"], "has no such row; did you mean sft_python?"),
        (["--scale", "smoke_mat"], "did you mean smoke_math?"),
        (["--row", "sao", "--step", "3"], "holds no policy; make it with: python -m sao.train --row sao"),
        (["--row", "base_python"], "make it with: python -m sao.prepare warm-start --scale smoke_math"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "cannot be reached"),
        (["--model", "other"], "has no model 'other'"),
    ],
)
def test_mistakes_of_the_command_line(
    results: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    with ScriptedModel(solve).serve() as url:
        assert main(words(results, url, *more)) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.usefixtures("small")
def test_a_checkpoint_that_cannot_converse(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = results / "smoke_math" / "prepare" / "arithmetic" / "warm_start" / "policy"
    (policy / "chat_template.jinja").unlink()
    assert main(words(results, "http://127.0.0.1:9/v1")) == 2
    assert "has no chat template" in capsys.readouterr().err
    for file in policy.glob("*token*"):
        file.unlink()
    assert main(words(results, "http://127.0.0.1:9/v1")) == 2
    assert "has no tokenizer" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_a_checkpoint_from_elsewhere_needs_no_scale(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = results / "smoke_math" / "prepare" / "arithmetic" / "warm_start" / "policy"
    elsewhere = [
        "--row",
        "base_python",
        "--scale",
        "paper_math",
        "--data",
        "synthetic",
        "--max-tokens",
        "2000",
    ]
    with ScriptedModel(solve).serve() as url:
        assert main(words(results, url, *elsewhere, "--checkpoint", str(policy))) == 0
        assert main(words(results, url, *elsewhere, "--checkpoint", str(policy / "nothing"))) == 2
    assert "there is no such folder" in capsys.readouterr().err
    folder = results / "paper_math" / "evaluations" / "base_python" / "seed0" / "step0" / "aime_2025"
    limits = read_evaluation(folder).spec["protocol"]
    assert (limits["max_tokens"], limits["max_turns"]) == (2000, 50)


@pytest.mark.usefixtures("small")
def test_changed_weights_are_another_evaluation(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedModel(solve).serve() as url:
        assert main(words(results, url)) == 0
        policy = results / "smoke_math" / "prepare" / "arithmetic" / "warm_start" / "policy"
        (policy / "model.safetensors").write_bytes(b"other weights")
        assert main(words(results, url)) == 2
    assert "holds samples of another evaluation (policy" in capsys.readouterr().err
    assert len(lines(folder_of(results))) == 6


@pytest.mark.usefixtures("small")
def test_another_number_of_problems_is_no_evaluation(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "load_synthetic", lambda name: PROBLEMS[:2])
        assert main(words(results, "http://127.0.0.1:9/v1")) == 2
    assert "2 problems where the protocol has 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--concurrency", "0"], "--concurrency: '0' is no whole number from 1 on"),
        (["--max-tokens", "-5"], "'-5' is no whole number from 1 on"),
        (["--seed", "-1"], "'-1' is no whole number from 0 on"),
        (["--row", "../../etc"], "'../../etc' names a folder"),
        (["--row", "zai/glm-4.7"], "'zai/glm-4.7' names a folder"),
        (["--benchmark", "aime_2024"], "invalid choice: 'aime_2024'"),
    ],
)
def test_options_that_make_no_evaluation(
    results: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words(results, "http://127.0.0.1:9/v1", *more))
    assert message in capsys.readouterr().err
    assert not (results / "smoke_math" / "evaluations").exists()


def test_a_scale_whose_policies_know_no_mathematics(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ("sao", "sft_python"):
        assert main(words(results, "http://127.0.0.1:9/v1", "--row", row, "--scale", "cpu")) == 2
        assert "its policies do no mathematics (task locks)" in capsys.readouterr().err


def test_the_first_version_of_imo_answerbench_can_be_chosen(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = words(results, "http://127.0.0.1:9/v1", "--benchmark", "imo_answerbench_v1")
    assert main(first) == 2
    assert "none of the generated ones, which are aime_2025" in capsys.readouterr().err
    assert main([*first, "--data", "published", "--data-dir", str(tmp_path / "no")]) == 2
    assert "imo_answerbench_v1: no file in" in capsys.readouterr().err


SPEC = {"row": "r", "seed": 0, "step": 4, "benchmark": "B", "samples": {"p1": 2, "p0": 1}}


def sample(problem: str, run: int, **more: Any) -> dict[str, Any]:
    return {"problem_id": problem, "run_index": run, "verdict": "right", "messages": ["..."]} | more


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SampleStore]:
    with SampleStore(tmp_path / "e", SPEC) as opened:
        yield opened


def test_a_store_orders_and_checks_samples(store: SampleStore) -> None:
    assert store.due == [("p1", 0), ("p0", 0), ("p1", 1)], "every problem's first run comes first"
    store.append(sample("p0", 0))
    store.append(sample("p1", 1))
    for twice in (sample("p0", 0), sample("p0", 1), sample("p1", 2), sample("p2", 0), sample("p1", -1)):
        with pytest.raises(ValueError, match="already or not due"):
            store.append(twice)
    with pytest.raises(SamplesMissing, match="1 of 3 samples are missing"):
        store.seal()
    assert not read_evaluation(store.path).sealed
    store.append(sample("p1", 0))
    store.seal()
    scores = read_evaluation(store.path).scores
    assert [(score["problem_id"], score["run_index"]) for score in scores] == [
        ("p1", 0),
        ("p1", 1),
        ("p0", 0),
    ]


def test_a_store_mends_an_incomplete_end_and_reports_damage(store: SampleStore) -> None:
    store.append(sample("p0", 0))
    store.close()
    file = store.path / "samples.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"problem_id": "p1", "run')
    assert len(list(read_samples(store.path))) == 1
    with SampleStore(store.path, SPEC) as again:
        assert again.done == {("p0", 0)}
        again.append(sample("p1", 0))
    assert len(lines_of(file)) == 2
    for line in (b"{broken\n", b"null\n", b"{}\n", b"[1]\n", b"\n"):
        file.write_bytes(line + whole)
        with pytest.raises(StoreError, match="line 1 is damaged"), SampleStore(store.path, SPEC):
            pass
    file.write_bytes(whole.replace(b'"p0"', b'"p9"'))
    with (
        pytest.raises(StoreError, match=r"p9 which spec.json does not ask for"),
        SampleStore(store.path, SPEC),
    ):
        pass
    file.write_bytes(whole + whole)
    with pytest.raises(StoreError, match="holds run 0 of problem p0 twice"), SampleStore(store.path, SPEC):
        pass


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_damaged_files_beside_the_samples_are_named(store: SampleStore) -> None:
    (store.path / "provenance.json").write_text("{")
    with pytest.raises(StoreError, match=r"provenance.json: cannot be read"), store.attempt("again"):
        pass
    store.close()
    (store.path / "spec.json").write_text('{"digest": "1", "row": "r"}')
    with pytest.raises(StoreError, match=r"spec.json: was changed"), SampleStore(store.path, SPEC):
        pass


def test_a_store_is_one_evaluation_of_one_process(store: SampleStore) -> None:
    from sao.runlog_files import RunError

    with pytest.raises(RunError, match="another process"), SampleStore(store.path, SPEC):
        pass
    store.close()
    with (
        pytest.raises(StoreError, match=r"another evaluation \(step 4, now 5\)"),
        SampleStore(store.path, {**SPEC, "step": 5}),
    ):
        pass


def test_a_sealed_evaluation_is_checked_against_its_seal(store: SampleStore) -> None:
    for key in store.due:
        store.append(sample(*key))
    store.seal()
    file = store.path / "scores.jsonl"
    file.write_text(file.read_text().replace("right", "wrong", 1))
    with pytest.raises(StoreError, match=r"scores.jsonl: was changed after it was sealed"):
        read_evaluation(store.path)


def attempt(verdict: str = "right") -> Attempt:
    return Attempt(Outcome(PlainGrade(verdict), "1", "stop"), [], 1, 1, 1, 2, Interpreter(None))


def run_with(store: SampleStore, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.0)
    problems = [Problem(name, "B", "?", "1") for name in SPEC["samples"]]  # type: ignore[attr-defined]
    asyncio.run(Runner(store, problems, play, 4, concurrency=2).run())


def test_failures_are_tried_again_and_are_no_answers(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: dict[Any, int] = {}

    async def play(problem: Any, run: int, executor: ThreadPoolExecutor) -> Attempt:
        key = (problem.problem_id, run)
        tries[key] = tries.get(key, 0) + 1
        if key == ("p1", 0) and tries[key] < 3:
            raise EndpointFailure("busy")
        if key == ("p1", 1):
            raise EndpointFailure("always busy")
        return attempt()

    run_with(store, play, monkeypatch)
    assert tries == {("p1", 0): 3, ("p0", 0): 1, ("p1", 1): 3}
    assert store.missing == [("p1", 1)], "no wrong answer"
    errors = lines_of(store.path / "errors.jsonl")
    assert [(error["problem_id"], error["message"]) for error in errors if error["run_index"] == 0] == [
        ("p1", "busy"),
        ("p1", "busy"),
    ]
    assert len(errors) == 5
    with pytest.raises(SamplesMissing):
        store.seal()


def test_an_endpoint_that_fails_every_sample_stops_the_run(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FAILURES_IN_A_ROW", 2)

    async def play(problem: Any, run: int, executor: ThreadPoolExecutor) -> Attempt:
        raise EndpointFailure("gone")

    with pytest.raises(EndpointFailure, match="2 samples in a row failed, the last with: gone"):
        run_with(store, play, monkeypatch)


def test_a_fault_of_the_program_is_not_swallowed(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(problem: Any, run: int, executor: ThreadPoolExecutor) -> Attempt:
        raise KeyError("a fault")

    with pytest.raises(KeyError):
        run_with(store, play, monkeypatch)
    assert store.done == set()
