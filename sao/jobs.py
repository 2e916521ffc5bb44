"""What a job asks of the machine or the cluster: nodes, GPUs, cores, memory, time. Imports no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sao.config import RunConfig
from sao.config_scales import ScaleSettings

LOCAL_MEMORY_MB = 1500  # one process of the local engine at scale cpu
LOCAL_HOURS = 24


@dataclass(frozen=True)
class Request:
    """One job: `nodes` nodes, each with `gpus` GPUs, `cores` cores and `memory_mb`; `minutes` at most."""

    nodes: int = 1
    gpus: int = 0
    cores: int = 1
    memory_mb: int = LOCAL_MEMORY_MB
    minutes: int = 60 * LOCAL_HOURS

    @property
    def all_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus

    @property
    def launcher(self) -> str:
        """What starts the processes of other nodes; empty for a job of one node."""
        return "srun" if self.nodes > 1 else ""


RESOURCES = {
    "mem_mb": "memory_mb",
    "runtime": "minutes",
    "nodes": "nodes",
    "gpu": "all_gpus",
    "tasks": "nodes",
    "mpi": "launcher",
    "cpus_per_task": "cores",
}
"""Snakemake's resources by field of a request. A SLURM job with `mpi` runs on its first node, unwrapped."""


def resources(request: Callable[[Any], Request]) -> dict[str, Any]:
    """Resources of a rule, from a function of the wildcards that gives the job's request."""

    def reader(name: str) -> Callable[[Any], Any]:
        return lambda wildcards: getattr(request(wildcards), name)

    return {resource: reader(name) for resource, name in RESOURCES.items()} | {"tasks_per_gpu": 0}


def nodes_of(run: RunConfig) -> int:
    """Nodes that a run's processes take; rows without a critic leave out the critic's."""
    cluster, job = run.cluster, run.job
    if cluster is None or job is None or cluster.one_node:
        return 1
    engine_nodes = math.ceil(cluster.engines.processes / max(job.gpus_per_node, 1))
    return cluster.actor.nodes + engine_nodes + (cluster.critic.nodes if run.critic else 0)


def training_request(run: RunConfig) -> Request:
    """The job of one run."""
    return _request(run, nodes_of(run))


def preparation_request(scale: ScaleSettings, step: str) -> Request:
    """The job of a preparation step, "traces", "warm_start" or "values_<frozen>".

    A teacher takes one node, a released model's fine-tuning the policy trainer's nodes, value pretraining
    those of a whole run.
    """
    if scale.cluster is None or scale.cluster.one_node:
        return _request(scale, 1)
    cluster, job = scale.cluster, scale.job
    assert job is not None  # which a scale with a cluster has
    if step in ("traces", "warm_start"):
        return _request(scale, cluster.actor.nodes if step == "warm_start" else 1)
    engine_nodes = math.ceil(cluster.engines.processes / max(job.gpus_per_node, 1))
    return _request(scale, cluster.actor.nodes + cluster.critic.nodes + engine_nodes)


def evaluation_request(scale: ScaleSettings) -> Request:
    """The job of one evaluation on a benchmark: one engine, or the local server."""
    if scale.job is None or scale.cluster is None or scale.device is None:
        engine_memory = 1000 * scale.job.memory_gb_per_node if scale.job and scale.model.path else 0
        return Request(cores=2, memory_mb=max(2 * LOCAL_MEMORY_MB, int(engine_memory)))
    engine = scale.cluster.engines.tensor_parallel
    share = min(engine / max(scale.job.gpus_per_node, 1), 1.0)
    return Request(
        gpus=engine,
        cores=max(2, int(share * scale.job.cores_per_node)),
        memory_mb=int(share * 1000 * scale.job.memory_gb_per_node),
        minutes=60 * scale.job.hours,
    )


def _request(settings: ScaleSettings, nodes: int) -> Request:
    job = settings.job
    if job is None:
        return Request()
    return Request(
        nodes=nodes,
        gpus=job.gpus_per_node if settings.device == "cuda" else 0,
        cores=job.cores_per_node,
        memory_mb=1000 * job.memory_gb_per_node,
        minutes=60 * job.hours,
    )
