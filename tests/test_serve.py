"""The local engine behind HTTP: what it samples, what it refuses, and how it stops."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from local_engine import SMALL_MODEL, plain_logprobs
from math_standins import serving, tokenizer

from sao.local.batching import BatchedEngine, EngineStopped, Sampling
from sao.local.decode import DecodeEngine
from sao.local.model import build_policy, export_policy
from sao.local.serve import Server, load_server

KEY = "secret"
VOCABULARY = len(tokenizer())
POLICY = build_policy(SMALL_MODEL, VOCABULARY, 64, seed=3).eval()
PROMPT = [2, 20, 21, 30]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "step-1"
    export_policy(POLICY, folder, tokenizer())
    return folder


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[httpx.Client]:
    server = load_server(checkpoint, slots=4, max_tokens=64, key=KEY)
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(server.app()) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        yield client
    server.engine.stop()


def complete(client: httpx.Client, **body: Any) -> httpx.Response:
    given = {"prompt": PROMPT, "max_tokens": 8, "logprobs": 0, "return_token_ids": True, "seed": 1} | body
    return client.post("/v1/completions", json=given)


def choice(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = complete(client, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_log_probs_are_those_of_the_full_softmax(client: httpx.Client) -> None:
    sampled = choice(client)
    assert len(sampled["token_ids"]) == 8 and sampled["prompt_token_ids"] == PROMPT
    with torch.no_grad():
        expected = plain_logprobs(POLICY, PROMPT + sampled["token_ids"])[len(PROMPT) - 1 :]
    assert sampled["logprobs"]["token_logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)


def test_log_probs_are_at_the_temperature_asked_for(client: httpx.Client) -> None:
    sampled = choice(client, temperature=0.5, max_tokens=1)
    with torch.no_grad():
        logits = POLICY(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    expected = (logits / 0.5).log_softmax(-1)[sampled["token_ids"][0]].item()
    assert sampled["logprobs"]["token_logprobs"] == pytest.approx([expected], abs=1e-4)


def test_temperature_zero_takes_the_likeliest(client: httpx.Client) -> None:
    sampled = choice(client, temperature=0)["token_ids"]
    tokens = list(PROMPT)
    for _ in sampled:
        with torch.no_grad():
            tokens.append(int(POLICY(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    assert sampled == tokens[len(PROMPT) :]


def test_a_seed_gives_the_same_tokens_whatever_else_is_decoded(client: httpx.Client) -> None:
    alone = choice(client, seed=7)["token_ids"]
    with ThreadPoolExecutor(9) as pool:  # more than the slots
        together = list(pool.map(lambda seed: choice(client, seed=seed, max_tokens=4 + seed), range(9)))
    assert choice(client, seed=7)["token_ids"] == alone
    assert together[7]["token_ids"][:8] == alone
    assert len({tuple(one["token_ids"][:4]) for one in together}) > 4
    assert [len(one["token_ids"]) for one in together] == [4 + seed for seed in range(9)]


def test_draws_follow_the_distribution() -> None:
    """20,000 first tokens against the softmax: no frequency is off by more than five standard errors."""
    from sao.local.batching import Job, _draw

    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    job = Job([1], Sampling(1), torch.Generator().manual_seed(5))
    tokens, _ = _draw(logits.expand(20_000, 4), [job] * 20_000)
    drawn = torch.bincount(torch.tensor(tokens), minlength=4)
    shares, expected = drawn / 20_000, logits.softmax(-1)
    assert ((shares - expected).abs() < 5 * (expected * (1 - expected) / 20_000).sqrt()).all()


def test_a_stop_token_ends_the_completion_and_is_part_of_it(client: httpx.Client) -> None:
    free = choice(client)["token_ids"]
    stop = free[3]
    stopped = choice(client, stop_token_ids=[stop])
    expected = free[: free.index(stop) + 1]
    assert (stopped["token_ids"], stopped["finish_reason"], stopped["stop_reason"]) == (
        expected,
        "stop",
        stop,
    )
    assert stopped["text"] == tokenizer().decode(expected[:-1])
    assert len(stopped["logprobs"]["token_logprobs"]) == len(expected)
    full = choice(client)
    assert (full["finish_reason"], full["stop_reason"]) == ("length", None)


def test_text_prompts_and_plain_answers(client: httpx.Client) -> None:
    answer = complete(client, prompt="ab<|im_end|>", logprobs=None, return_token_ids=False).json()
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert set(answer["choices"][0]) == {"index", "text", "finish_reason", "stop_reason"}


def test_the_model_is_listed_with_its_context(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("step-1", 64)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"top_p": 0.9}, 400, "top_p"),
        ({"top_k": 20}, 400, "top_k"),
        ({"min_p": 0.1}, 400, "min_p"),
        ({"repetition_penalty": 1.1}, 400, "repetition_penalty"),
        ({"n": 2}, 400, "n: "),
        ({"stream": True}, 400, "stream"),
        ({"stop": ["\n"]}, 400, "stop: Extra inputs are not permitted"),
        ({"logprobs": 5}, 400, "logprobs"),
        ({"temperature": -1}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": []}, 400, "the prompt is empty"),
        ({"prompt": [1, 99999]}, 400, "token 99999"),
        ({"prompt": [-1]}, 400, "token -1"),
        ({"max_tokens": 61}, 400, "maximum context length of 64 tokens"),
        ({"model": "other"}, 404, "'other' does not exist; this server has 'step-1'"),
    ],
)
def test_what_the_server_lacks_it_refuses_by_name(
    client: httpx.Client, body: dict[str, Any], status: int, message: str
) -> None:
    answer = complete(client, **body)
    assert answer.status_code == status and message in answer.json()["error"]["message"]


def test_sampling_that_changes_nothing_may_be_named(client: httpx.Client) -> None:
    assert complete(client, top_k=0, min_p=0.0, repetition_penalty=1.0).status_code == 200


def test_other_faults_of_requests(client: httpx.Client) -> None:
    broken = client.post("/v1/completions", content=b"{")
    assert broken.status_code == 400 and "Invalid JSON" in broken.json()["error"]["message"]
    unknown = client.post("/v1/chat/completions", json={})
    assert unknown.status_code == 404 and "/v1/completions" in unknown.json()["error"]["message"]
    assert client.get("/v1/completions").status_code == 405
    for path in ("/v1/models", "/v1/completions"):
        refused = client.request("GET" if "models" in path else "POST", path, headers={"authorization": ""})
        assert refused.status_code == 401 and "API key" in refused.json()["error"]["message"]


def test_a_checkpoint_without_tokenizer_takes_ids_alone(tmp_path: Path) -> None:
    export_policy(POLICY, tmp_path / "bare")
    server = load_server(tmp_path / "bare", slots=1, max_tokens=32, key=None)
    with serving(server.app()) as url, httpx.Client(base_url=url) as client:
        assert complete(client).status_code == 200
        refused = complete(client, prompt="text")
        assert refused.status_code == 400 and "send token ids" in refused.json()["error"]["message"]
    server.engine.stop()


class SlowEngine(DecodeEngine):
    """Waits in every step, and breaks in one on request."""

    breaks = False

    def step(self, *given: Any) -> torch.Tensor:
        time.sleep(0.02)
        if self.breaks:
            self.breaks = False
            raise RuntimeError("out of memory")
        return super().step(*given)


def test_a_client_that_leaves_frees_its_slot() -> None:
    slow = BatchedEngine(SlowEngine(POLICY, 1, 64, "none"))
    with serving(Server(slow, None, "m").app()) as url, httpx.Client(base_url=url) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 60}, timeout=0.2)
        started = time.monotonic()
        assert (
            client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}, timeout=30).status_code
            == 200
        )
        assert time.monotonic() - started < 0.9, "waited for the 60 tokens of a client that had left"
    slow.stop()


def test_an_engine_that_fails_once_serves_the_next_request() -> None:
    engine = SlowEngine(POLICY, 2, 64, "none")
    slow = BatchedEngine(engine)
    engine.breaks = True
    with pytest.raises(RuntimeError, match="out of memory"):
        slow.submit(PROMPT, Sampling(2)).future.result(10)
    assert len(slow.submit(PROMPT, Sampling(2)).future.result(10).token_ids) == 2
    slow.stop()


def test_stopping_fails_what_is_under_way() -> None:
    slow = BatchedEngine(SlowEngine(POLICY, 1, 64, "none"))
    jobs = [slow.submit(PROMPT, Sampling(50)) for _ in range(3)]
    slow.stop()
    for job in jobs:
        with pytest.raises(EngineStopped):
            job.future.result(1)
    with pytest.raises(EngineStopped):
        slow.submit(PROMPT, Sampling(1))


def test_the_command_serves_until_it_is_told_to_stop(checkpoint: Path) -> None:
    """The request under way when SIGTERM comes is still answered, and the exit code is 0."""
    command = [sys.executable, "-m", "sao.local.serve", "--checkpoint", str(checkpoint), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"SAO_API_KEY": "", "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout
    words = process.stdout.readline().split()
    assert words[:2] == ["serving", "step-1"]
    with httpx.Client(base_url=words[3], timeout=30) as client, ThreadPoolExecutor(1) as pool:
        client.get("/models")
        answer = pool.submit(client.post, "/completions", json={"prompt": PROMPT, "max_tokens": 60})
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert answer.result().status_code == 200
    assert process.wait(30) == 0


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sao.local.serve import main

    assert main(["--checkpoint", str(tmp_path), "--port", "0"]) == 2
    assert "holds no exported policy" in capsys.readouterr().err
    assert main(["--checkpoint", str(tmp_path), "--host", "999.1.1.1"]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_new_weights_count_from_the_next_token_on_in_the_middle_of_a_request() -> None:
    """Tokens before the load are the first policy's, those behind it the second's over the first's cache."""
    others = build_policy(SMALL_MODEL, VOCABULARY, 64, seed=4).eval()
    engine = DecodeEngine(POLICY, slots=2, max_tokens=64, rounding="none")
    step, steps, go_on = engine.step, 0, threading.Event()

    def counted(*arguments: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 6:
            go_on.set()
            time.sleep(0.2)  # the load is asked for in the middle of a step
        return step(*arguments)

    engine.step = counted  # type: ignore[method-assign]
    batched = BatchedEngine(engine, version=7)
    job = batched.submit(PROMPT, Sampling(max_tokens=20, seed=5))
    assert go_on.wait(10)
    batched.load_weights(others, 8)
    sampled = job.future.result(10)
    after = batched.submit(PROMPT, Sampling(max_tokens=3, seed=5)).future.result(10)
    batched.stop()
    assert sampled.versions == [7] * 6 + [8] * 14 and after.versions == [8] * 3
    with torch.no_grad():
        first = plain_logprobs(POLICY, PROMPT + sampled.token_ids)[len(PROMPT) - 1 :]
        second = plain_logprobs(others, PROMPT + after.token_ids)[len(PROMPT) - 1 :]
    assert sampled.logprobs[:6] == pytest.approx(first.tolist()[:6], abs=1e-4)
    assert sampled.logprobs[6:] != pytest.approx(first.tolist()[6:], abs=1e-4)
    assert after.logprobs == pytest.approx(second.tolist(), abs=1e-4)
    with pytest.raises(EngineStopped):
        batched.load_weights(others, 9)


def test_the_answer_names_the_version_of_each_token(client: httpx.Client) -> None:
    assert choice(client, max_tokens=3)["policy_versions"] == [0, 0, 0]
    assert "policy_versions" not in choice(client, return_token_ids=False)
