"""Fine-tuning of a released model on a stronger one's traces, by OpenRLHF's own command on a job's GPUs.

    python -m sao.prepare warm-start --scale paper_math --task math

torchrun starts a process for each GPU, through srun where the job has several nodes. A stopped step resumes
from DeepSpeed's latest checkpoint, which lies beside the policy until the step is finished.
"""

import functools
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sao.config import Scale, preparation_digest
from sao.config_files import file_of, shown
from sao.openrlhf import check_versions
from sao.openrlhf.launch import end_with
from sao.openrlhf.nodes import NodesError, job_hosts
from sao.openrlhf.sft_flags import CLI, checkpoints_folder, how_to_make_traces, sft_words, traces_file
from sao.prepare import seal
from sao.runlog import RunError
from sao.temporary_folder import TemporaryFolder

PORT = 29_400
ROOT = Path(__file__).resolve().parents[2]


def fine_tune(scale: Scale, task: str, folder: Path, results: str) -> int:
    """Fine-tunes the scale's released model and seals `folder`; returns 0, or 1 where the command failed."""
    words = sft_words(scale, results)
    assert scale.sft and scale.cluster and scale.model.path is not None  # or there would be no words
    if not (traces := traces_file(scale.sft, results)).exists():
        raise RunError(f"{traces}: is missing; {how_to_make_traces(scale.sft, scale.model.path, results)}")
    check_versions()
    command = [*launcher(scale, os.environ), "-m", "sao.openrlhf.fine_tuning", *words]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ends_with_this = functools.partial(end_with, os.getpid())  # or a second start would write beside it
    with TemporaryFolder.of_launch() as temporary:
        own = temporary.variables if scale.cluster.actor.nodes == 1 else {}  # other nodes have no such folder
        environment = os.environ | {"PYTHONPATH": path} | own
        code = subprocess.run(command, env=environment, preexec_fn=ends_with_this, check=False).returncode
    if code or not (folder / "policy" / "config.json").exists():
        print(
            f"{folder}: fine-tuning ended with code {code}; the same command goes on from its latest "
            "checkpoint",
            file=sys.stderr,
        )
        return 1
    shutil.rmtree(checkpoints_folder(scale, results), ignore_errors=True)
    seal(folder, preparation_digest(scale.name, task))
    return 0


def launcher(scale: Scale, environment: Mapping[str, str]) -> list[str]:
    """What starts a Python command once for each GPU of the policy's trainer; RunError without its nodes."""
    assert scale.cluster is not None  # of a scale over OpenRLHF
    group = scale.cluster.actor
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    each = ["--nproc-per-node", str(group.processes_per_node)]
    if group.nodes == 1:
        return [*torchrun, "--standalone", *each]
    try:
        hosts = job_hosts(environment)
    except NodesError:
        raise RunError(
            f"{shown(file_of('scales', scale.name))}: cluster.actor.nodes: fine-tuning on {group.nodes} "
            "nodes starts inside a SLURM job; use --profile profiles/slurm"
        ) from None
    nodes = ["--nodes", str(group.nodes), "--ntasks", str(group.nodes), "--ntasks-per-node=1"]
    gpus = ["--gpus-per-node", str(group.processes_per_node)]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0]}:{PORT}"]
    srun = ["srun", "--overlap", "--kill-on-bad-exit=1", *nodes, *gpus]
    return [*srun, *torchrun, "--nnodes", str(group.nodes), *meeting, *each]


def main(words: list[str]) -> None:
    """One process of torchrun: OpenRLHF's command, prepared for a machine without CUDA where this is one."""
    end_with(os.getppid())
    import sao.openrlhf.ready  # noqa: F401

    # isort: split
    import openrlhf.utils

    from sao.openrlhf.strategy import make_fine_tuning_strategy

    openrlhf.utils.get_strategy = make_fine_tuning_strategy
    sys.argv = [CLI, *words]
    runpy.run_module(CLI, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
