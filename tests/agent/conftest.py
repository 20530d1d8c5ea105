"""Fixtures of the agent's tests: a machine with GPUs that are not there."""

from __future__ import annotations

from tests.agent.mock_gpus import gpus, nvml_library, nvml_library_535, old_nvml_library

__all__ = ["gpus", "nvml_library", "nvml_library_535", "old_nvml_library"]
