"""Processor time of the evaluation's client for each sample: one turn, integer answers, a scripted endpoint.

    OMP_NUM_THREADS=1 python benchmarks/math_client.py

The endpoint runs in a process of its own, so that the client's time is its own: requests, the conversation,
grading in this process's threads, and the lines of the result file. Start-up is given apart.
"""

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

SAMPLES = 480


def serve(pipe: "multiprocessing.connection.Connection") -> None:
    """Serve the tests' scripted model until the other end of the pipe closes."""
    from math_standins import ScriptedModel
    from test_math_runner import solve

    with ScriptedModel(solve).serve() as url:
        pipe.send(url)
        pipe.recv()


def main() -> None:
    """Print start-up and milliseconds a sample."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = here.recv()

    started = time.process_time()
    from math_standins import tokenizer

    from evaluation.math import runner

    with tempfile.TemporaryDirectory() as results:
        folder = Path(results, "smoke_math", "prepare", "arithmetic", "warm_start", "policy")
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "qwen3_moe"}')
        tokenizer().save_pretrained(folder)
        times: list[float] = []
        evaluate = runner.evaluate

        def timed(*given: object) -> None:
            times.append(time.process_time())
            evaluate(*given)  # type: ignore[arg-type]
            times.append(time.process_time())

        runner.evaluate = timed  # type: ignore[assignment]
        words = [
            "--row",
            "sft_no_python",
            "--scale",
            "smoke_math",
            "--results",
            results,
            "--benchmark",
            "aime_2025",
        ]
        code = runner.main([*words, "--endpoint", url, "--model", "scripted"])
    here.send("done")
    begun, ended = times
    print(f"exit code {code}")
    print(f"start-up  {begun - started:6.2f} s of processor time")
    print(
        f"client    {1000 * (ended - begun) / SAMPLES:6.2f} ms of processor time a sample ({SAMPLES} samples)"
    )


if __name__ == "__main__":
    main()
