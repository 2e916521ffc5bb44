"""vLLM as a child: its command line, its start, failures and end, with a stand-in for the package."""

import json
import os
import sys
import time
from pathlib import Path

import httpx
import pytest

from evaluation import vllm_server
from evaluation.local_server import ServerError
from evaluation.math.targets import (
    endpoint_options,
    evaluation_environment,
    evaluation_python,
    evaluation_seals,
    untrained_rows,
)
from evaluation.vllm_server import VLLMServer
from sao.config import load_scale
from sao.grid import open_grid
from sao.temporary_folder import TemporaryFolder

SERVER = """
import http.server, json, os, subprocess, sys, tempfile, time

words = sys.argv[1:]
print(json.dumps({"words": words, "key": os.environ["VLLM_API_KEY"]}), flush=True)
if "--fail" in words:
    sys.exit("ValueError: the model has 3 heads, which 2 GPUs cannot share")
tempfile.mkstemp(prefix="socket-")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


time.sleep(0.5)
http.server.HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packages" / "vllm" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent, folder.parent.parent):
        (place / "__init__.py").touch()
    (folder / "api_server.py").write_text(SERVER)
    path = os.pathsep.join([str(tmp_path / "packages"), str(Path(__file__).parents[1])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(TemporaryFolder, "of_launch", lambda: TemporaryFolder("sao-", temporary))
    return tmp_path


def runs(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and " Z " not in stat.read_text()


def test_it_answers_once_entered_and_leaves_no_process_and_no_file(package: Path) -> None:
    log = package / "logs" / "server.log"
    with VLLMServer("/models/tiny", log, 1024, 8, tensor_parallel=4, memory_share=0.5) as server:
        assert httpx.get(server.url.replace("/v1", "/health")).status_code == 200
        given, child = log.read_text().splitlines()
        said = json.loads(given)
        assert (server.model, said["key"]) == ("tiny", server.key) and server.key not in given.split("key")[0]
        words = dict(zip(said["words"][::2], said["words"][1::2], strict=False))
        expected = {"--model": "/models/tiny", "--max-model-len": "1024", "--max-num-seqs": "8"}
        expected |= {"--tensor-parallel-size": "4", "--gpu-memory-utilization": "0.5"}
        expected |= {"--generation-config": "vllm", "--logprobs-mode": "processed_logprobs"}
        assert expected.items() <= words.items()
        assert runs(int(child)) and list(package.glob("tmp/sao-*/socket-*"))
    assert not list(package.glob("tmp/*"))
    deadline = time.monotonic() + 10
    while runs(int(child)):
        assert time.monotonic() < deadline, "its workers end with it"
        time.sleep(0.05)


def test_a_failing_start_names_reason_and_log(package: Path) -> None:
    log = package / "server.log"
    with (
        pytest.raises(ServerError, match=r"does not start: ValueError: the model has 3 heads.*; see "),
        VLLMServer("tiny", log, 1024, 8, more=["--fail"]),
    ):
        pass
    assert not list(package.glob("tmp/*"))


def test_a_server_that_never_answers_is_given_up(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "START_SECONDS", 0.1)
    server = VLLMServer("tiny", package / "server.log", 1024, 8)
    with pytest.raises(ServerError, match="does not answer after 0 s"), server:
        pass
    assert server._process.returncode is not None and not list(package.glob("tmp/*"))


def test_without_vllm_the_mend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server.importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(ServerError, match=r"vLLM is not installed in .*openrlhf_python=FILE.*endpoint"),
        VLLMServer("tiny", tmp_path / "server.log", 1024, 8),
    ):
        pass


def test_the_workflow_evaluates_released_models_where_vllm_is() -> None:
    python = {"openrlhf_python": "/my envs/bin/python"}
    paper, small = open_grid({"scale": "paper_math", **python}), open_grid({"scale": "smoke_math", **python})
    assert evaluation_python(paper, {}) == "'/my envs/bin/python'"
    assert evaluation_environment(paper, {}) == "experiments/environments/openrlhf.yaml"
    for grid, switches in ((small, {}), (paper, {"endpoint": "http://here/v1"})):
        assert evaluation_python(grid, switches) == "python"
        assert evaluation_environment(grid, switches) == "environment.yml"
    assert endpoint_options({"benchmarks": "a b"}, "sao", ["sao"]) == "--data-dir 'a b'"


def test_a_model_that_is_not_fine_tuned_has_no_such_rows() -> None:
    paper = load_scale("paper_math")
    assert evaluation_seals(paper, "r", [], []).keys() == set(untrained_rows())
    plain = paper.model_copy(update={"sft": None})
    assert evaluation_seals(plain, "r", [], []).keys() == {"base_python", "base_no_python"}
