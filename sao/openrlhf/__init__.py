"""The method over OpenRLHF (Ray, vLLM, DeepSpeed), by subclassing; no installed package is edited.

Private names of one release are replaced, so that release is required to the letter, and every replaced name
must be there: `check_installation` says what is wrong in one message.
"""

import importlib
from importlib import metadata

REQUIRED = {"openrlhf": "0.11.2"}
# Module, and the names in it that this package replaces or subclasses.
REPLACED = {
    "openrlhf.utils": ("get_strategy",),
    "openrlhf.utils.distributed_util": ("stateless_init_process_group",),
    "openrlhf.utils.utils": ("convert_to_torch_dtype",),
    "openrlhf.utils.deepspeed.deepspeed": ("DeepspeedStrategy", "init_device_mesh"),
    "openrlhf.models.actor": ("Actor",),
    "openrlhf.trainer.ray.ppo_actor": (
        "Actor",
        "ActorPPOTrainer",
        "DataLoader",
        "PolicyModelActor",
        "stateless_init_process_group",
    ),
    "openrlhf.trainer.ray.ppo_critic": (
        "CriticModelActor",
        "CriticPPOTrainer",
        "DataLoader",
        "get_llm_for_sequence_regression",
    ),
    "openrlhf.trainer.ray.launcher": ("placement_group",),
    "openrlhf.trainer.ray.vllm_engine": ("RolloutRayActor", "create_vllm_engines", "placement_group"),
    "openrlhf.trainer.ppo_trainer": ("BasePPOTrainer", "PPOTrainer", "RemoteExperienceMaker"),
    "openrlhf.trainer.ppo_trainer_async": ("PPOTrainerAsync",),
}


class InstallationError(Exception):
    """A package is missing or of another version than this backend was written for."""


def check_versions() -> None:
    """Raises InstallationError where OpenRLHF is missing or of another version; imports nothing."""
    for name, required in REQUIRED.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise InstallationError(
                f"{name} is not installed, and backend openrlhf needs {name}=={required}; without a GPU run "
                '`make openrlhf-environment`, with one `pip install ".[openrlhf]"`'
            ) from None
        if found != required:
            raise InstallationError(
                f"{name} {found} is installed, and backend openrlhf replaces private names of {required}; "
                f"run `pip install --no-deps {name}=={required}`"
            )


def check_installation() -> None:
    """Raises InstallationError where version or a replaced name does not fit; imports OpenRLHF."""
    check_versions()
    for module_name, names in REPLACED.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InstallationError(f"{module_name} cannot be imported: {error}") from None
        if missing := [name for name in names if not hasattr(module, name)]:
            raise InstallationError(
                f"{module_name} has no {', '.join(missing)}: this is not OpenRLHF {REQUIRED['openrlhf']} as "
                "released; install that release anew"
            )
