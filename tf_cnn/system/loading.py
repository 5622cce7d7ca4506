"""Loads what a row of a table names."""

import importlib
from typing import Any


def load(path: str) -> Any:
    """Returns the object that a row of a table names as module:name."""
    module, name = path.split(':')
    return getattr(importlib.import_module(module), name)
