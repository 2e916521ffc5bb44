#!/bin/sh
# Run by Snakemake in the environment of openrlhf.yaml once it is made. flash-attn is built here against its torch,
# which needs the CUDA toolkit (CUDA_HOME) and takes minutes to an hour.
set -eu
DS_BUILD_OPS=0 python -m pip install --no-build-isolation "openrlhf[ring,vllm]==0.11.2" flash-attn==2.8.3
