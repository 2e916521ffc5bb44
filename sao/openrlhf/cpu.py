"""What OpenRLHF needs on a machine without CUDA; every function here does nothing where there is CUDA.

`install` comes before the first import of OpenRLHF in every process. It renames devices, and stands in for
the parts of flash-attn that OpenRLHF imports (they move no attention: padding helpers and a gather).
`adapted` changes DeepSpeed's configuration, `set_attention` the attention that packed rows use.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

FLOAT32 = "fp32"  # beside OpenRLHF's "bf16" and "fp16"
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "TORCHDYNAMO_DISABLE": "1",  # compiling the sampler takes half a minute and makes it no faster here
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "GLOO_SOCKET_IFNAME": "lo",
}


def is_needed() -> bool:
    """Whether this machine has no CUDA."""
    return not torch.cuda.is_available()


def environment() -> dict[str, str]:
    """Environment variables of every process of a run, those already set unchanged; empty with CUDA."""
    if not is_needed():
        return {}
    return {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}


class _Device(str):
    """The device "cpu" for `.to()` and `device=`; in f"cuda:{device}", which OpenRLHF writes, it is 0."""

    def __format__(self, specification: str) -> str:
        return "0"


def install() -> None:
    """Make OpenRLHF importable and its device calls harmless in this process; a second call does nothing."""
    if not is_needed() or isinstance(torch.cuda.current_device, _Named):
        return
    os.environ.update(environment())
    torch.cuda.current_device = _Named(lambda: _Device("cpu"))
    for name in ("set_device", "synchronize", "empty_cache", "current_stream"):
        setattr(torch.cuda, name, _Named(lambda *_, **__: None))
    _use_cpu_meshes()
    if importlib.util.find_spec("flash_attn") is None:
        sys.meta_path.insert(0, _FlashAttentionForOneModule())


class _Named:
    """A replacement that `install` can tell from the original."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


def _use_cpu_meshes() -> None:
    from torch.distributed import device_mesh

    original = device_mesh.init_device_mesh

    def init_device_mesh(device_type: str, *arguments: Any, **named: Any) -> Any:
        return original("cpu" if device_type == "cuda" else device_type, *arguments, **named)

    device_mesh.init_device_mesh = init_device_mesh


class _FlashAttentionForOneModule(importlib.abc.MetaPathFinder):
    """Gives OpenRLHF's ring-attention module its imports, while transformers and vLLM still see none."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "openrlhf.models.ring_attn_utils":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithFlashAttention(spec.loader)
        return spec


class _WithFlashAttention(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        stand_ins = _flash_attention_modules()
        sys.modules.update(stand_ins)
        try:
            self.loader.exec_module(module)
        finally:
            for name in stand_ins:
                del sys.modules[name]


def _flash_attention_modules() -> dict[str, ModuleType]:
    from einops import rearrange

    names = ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed")
    modules = {name: ModuleType(name) for name in names}
    padding = {
        "index_first_axis": lambda states, indices: states[indices],
        "pad_input": pad_input,
        "rearrange": rearrange,
        "unpad_input": unpad_input,
    }
    modules["flash_attn.bert_padding"].__dict__.update(padding)
    modules["flash_attn.utils.distributed"].__dict__["all_gather"] = all_gather
    return modules


def unpad_input(states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Rows [batch, tokens, ...] behind each other without padding: [total, ...], and where they came from.

    Returns the packed states, their places in the flattened batch int64 [total], cumulated lengths int32
    [batch + 1], the greatest length, and the lengths int32 [batch], as flash-attn 2.8 does.
    """
    lengths = attention_mask.sum(dim=1, dtype=torch.int32)
    places = attention_mask.flatten().nonzero().flatten()
    cumulated = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return states.flatten(0, 1)[places], places, cumulated, int(lengths.max()), lengths


def pad_input(states: Tensor, places: Tensor, batch: int, tokens: int) -> Tensor:
    """Inverse of `unpad_input`: packed states [total, ...] as [batch, tokens, ...], 0 where padded."""
    padded = states.new_zeros((batch * tokens, *states.shape[1:])).index_copy(0, places, states)
    return padded.unflatten(0, (batch, tokens))


def all_gather(states: Tensor, group: Any) -> Tensor:
    """Ring attention needs CUDA kernels, so its gather is never reached here."""
    raise RuntimeError("ring attention needs CUDA; set --ds.ring_attn_size 1")


def before_distributed() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce, which takes minutes, and mend its gathers.

    ZeRO-3 starts one gather for each parameter of a module and waits for the last alone, which is enough on a
    CUDA stream. Over gloo the others may end later, and then overwrite what was loaded into the parameter.
    """
    if not is_needed():
        return
    from deepspeed import comm

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    if not isinstance(comm.all_gather_into_tensor, _Named):
        comm.all_gather_into_tensor = _Named(_finished(comm.all_gather_into_tensor))


def _finished(collective: Callable[..., Any]) -> Callable[..., Any]:
    """`collective`, ended when it returns, also where it was asked to run on."""

    def finished(*arguments: Any, **named: Any) -> Any:
        work = collective(*arguments, **named)
        if work is not None:
            work.wait()
        return work

    return finished


def adapted(deepspeed_config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration with torch's AdamW in place of the kernel that it would compile."""
    if is_needed() and "optimizer" in deepspeed_config:
        deepspeed_config["optimizer"]["params"]["torch_adam"] = True
    return deepspeed_config


def set_attention(arguments: Any) -> None:
    """Let packed rows use torch's attention; OpenRLHF's check, which comes first, wants flash-attn."""
    if is_needed():
        if arguments.ds.attn_implementation.startswith("flash"):
            arguments.ds.attn_implementation = "sdpa"
        arguments.ds.experts_implementation = arguments.ds.experts_implementation or "eager"


def allow_float32() -> None:
    """Let `ds.param_dtype` be FLOAT32 in this process, which OpenRLHF lacks."""
    from openrlhf.utils import utils

    if isinstance(utils.convert_to_torch_dtype, _Named):
        return
    original = utils.convert_to_torch_dtype
    utils.convert_to_torch_dtype = _Named(lambda name: torch.float32 if name == FLOAT32 else original(name))
