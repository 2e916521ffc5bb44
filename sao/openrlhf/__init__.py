"""The method over OpenRLHF 0.11.2 (Ray, vLLM, DeepSpeed), by subclassing; needs the extra `openrlhf`."""
