"""Run programs written for TileLang unchanged: ``python -m tilecore.compat program.py [args]``.

- :mod:`tilecore.compat.modules` answers ``import tilelang.…`` with tilecore's modules.
- :mod:`tilecore.compat.device` lets code that says ``device="cuda"`` run on this CPU.
- :mod:`tilecore.compat.survey` runs every program below a folder and says what became of each.
"""
