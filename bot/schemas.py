"""The JSON Schemas of our file formats, generated from the types."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json

from pydantic import BaseModel

from bot.anchors import Anchors
from bot.contract import Contract
from bot.evidence import Evidence
from bot.model import Report
from bot.policy import Policy

__all__ = ["schemas"]

VERSIONS = {"evidence": 2}


def schemas() -> dict[str, str]:
    """File stem to JSON text, for `contracts/schemas/`."""
    models: dict[str, type[BaseModel]] = {
        "anchor": Anchors,
        "contract": Contract,
        "evidence": Evidence,
        "policy": Policy,
        "report": Report,
    }
    result = {}
    for name, model in models.items():
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"fla-bot/{name}@{VERSIONS.get(name, 1)}",
            **model.model_json_schema(by_alias=True),
        }
        result[name] = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    return result
