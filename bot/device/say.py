"""What a device process tells its host: one line of JSON a thing, and which machine it is on."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bot.evidence import Environment

__all__ = ["environment", "say"]


def say(kind: str, value: dict[str, Any]) -> None:
    """One line for the host."""
    sys.stdout.write(json.dumps({kind: value}) + "\n")
    sys.stdout.flush()


def environment(order: dict[str, Any]) -> Environment:
    """Versions and device; the host puts the sandbox in."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "absent"
    cuda = order["device"] == "cuda"
    return Environment(
        python=sys.version.split()[0],
        torch=torch.__version__,
        triton=triton,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        interpreter=order["interpreter"],
        protections=[],
    )
