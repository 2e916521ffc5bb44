"""Profiles of clusters: what they hold, and what the workflow plans with them."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sao.config import resolve
from sao.jobs import training_request
from sao.switches import Switches

ROOT = Path(__file__).parents[1]


def profile(name: str) -> dict[str, object]:
    return yaml.safe_load((ROOT / "profiles" / name / "profile.yaml").read_text())


def dry_run(folder: Path, *arguments: str) -> str:
    """Output of a dry run of the repository's Snakefile in an empty folder."""
    command = [sys.executable, "-m", "snakemake", *arguments, "-n", "-s", str(ROOT / "Snakefile")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--directory", str(folder)], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_profiles_leave_the_default_ones_settings(name: str) -> None:
    assert not set(profile(name)) & {"keep-incomplete", "rerun-triggers", "nolock", "keep-going"}


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_dry_run_with_a_profile(name: str, tmp_path: Path) -> None:
    if name == "slurm" and importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("snakemake-executor-plugin-slurm is not installed")
    target = "results/paper_math/runs/sao/seed0/seal.json"
    output = dry_run(
        tmp_path, target, "--profile", str(ROOT / "profiles" / name), "--config", "scale=paper_math"
    )
    train = output.split("rule train:")[1].split("\n\n")[0]
    for words in ("nodes=12", "runtime=4320", "mpi=srun", "gpu=96", "mem_mb=1000000"):
        assert words in train, train


def test_slurm_gets_one_allocation_of_whole_nodes() -> None:
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("snakemake-executor-plugin-slurm is not installed")
    from types import SimpleNamespace

    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    from sao.jobs import resources

    class Resources(dict):
        __getattr__ = dict.__getitem__

    request = training_request(resolve("sao", "paper_math", 0))
    values = resources(lambda wildcards: request)
    asked = Resources({name: value(None) if callable(value) else value for name, value in values.items()})
    job = SimpleNamespace(resources=asked, threads=request.cores)
    names = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    command = get_submit_command(job, dict.fromkeys(names, "x")) + set_gres_string(job)
    for words in ("-t 4320", "--mem 1000000", "--nodes=12", "--ntasks=12", "--cpus-per-task=96", "--gpus=96"):
        assert words in command, command
    assert "ntasks-per-gpu" not in command


def test_kubernetes_manifest_has_the_nodes_of_the_papers_scale() -> None:
    documents = list(yaml.safe_load_all((ROOT / "profiles/kubernetes/ray.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Service", "StatefulSet", "StatefulSet"]
    service, head, workers = documents
    request = training_request(resolve("sao", "paper_math", 0))
    assert head["spec"]["replicas"] + workers["spec"]["replicas"] == request.nodes
    assert service["spec"]["selector"] == head["spec"]["template"]["metadata"]["labels"]
    for stateful in (head, workers):
        labels = stateful["spec"]["template"]["metadata"]["labels"]
        assert stateful["spec"]["selector"]["matchLabels"] == labels
        assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
        (container,) = stateful["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == request.gpus
        assert f"--num-gpus={request.gpus}" in container["command"]
        volumes = {volume["name"] for volume in stateful["spec"]["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    port = service["spec"]["ports"][0]["port"]
    (worker,) = workers["spec"]["template"]["spec"]["containers"]
    assert f"--address={service['metadata']['name']}:{port}" in worker["command"]


def test_kubernetes_workflow_finds_ray_and_the_profile() -> None:
    ray = list(yaml.safe_load_all((ROOT / "profiles/kubernetes/ray.yaml").read_text()))
    job = yaml.safe_load((ROOT / "profiles/kubernetes/workflow.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    address = {entry["name"]: entry["value"] for entry in container["env"]}["RAY_ADDRESS"]
    service = ray[0]
    assert address == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert (ROOT / container["command"][-1] / "profile.yaml").is_file()
    switches = dict(word.split("=") for word in container["args"][1:])
    assert Switches.parse(switches).openrlhf_python == "/opt/openrlhf/bin/python"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert switches["results"].startswith(tuple(f"{mount}/" for mount in mounts))


def test_environments_pin_exact_versions_that_the_extras_allow() -> None:
    from packaging.requirements import Requirement
    from packaging.version import Version

    project = re.findall(r'"([A-Za-z0-9_.\[\]-]+(?:==|>=)[^"]+)"', (ROOT / "pyproject.toml").read_text())
    allowed = {}
    for text in project:
        allowed.setdefault(Requirement(text).name.lower(), []).append(Requirement(text).specifier)
    content = yaml.safe_load((ROOT / "experiments/environments/openrlhf.yaml").read_text())
    (pins,) = [entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict)]
    for text in pins:
        pin = Requirement(text)
        (exact,) = pin.specifier
        assert exact.operator == "==", text
        for specifier in allowed.get(pin.name.lower(), []):
            assert specifier.contains(Version(exact.version)), text
    versions = {Requirement(text).name: str(Requirement(text).specifier) for text in pins}
    assert versions["vllm"] == "==0.29.0" and versions["deepspeed"] == "==0.19.6"
    script = ROOT / "experiments/environments/openrlhf.post-deploy.sh"
    assert "openrlhf[ring,vllm]==0.11.2" in script.read_text()
    subprocess.run(["sh", "-n", str(script)], check=True)
