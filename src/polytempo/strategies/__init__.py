"""The methods, one file each; a new file in this folder is found by itself."""

import importlib
import pkgutil

from polytempo.strategies.strategy import Setting, Strategy, make_strategy, strategies, strategy

for _module in pkgutil.iter_modules(__path__):
    if not _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Setting", "Strategy", "make_strategy", "strategies", "strategy"]
