"""Imported before OpenRLHF in every process: prepares a machine without CUDA."""

from sao.openrlhf import cpu

cpu.install()
