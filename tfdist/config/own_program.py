"""Python programs that import the installed tfdist, and nothing from the current directory.

`python -c` and `python -m` look for modules in the current directory first. Another user may have
put a folder `tfdist` there, as in /tmp. `python -P` would leave the directory out, but needs Python
3.11, and `python -I` leaves out `PYTHONPATH` and the user's own packages too.
"""

from __future__ import annotations

# The first statements of a program for `python -c`: `sys` is a part of Python itself, and "" in the
# path stands for the current directory.
WITHOUT_CURRENT_DIRECTORY = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "


def own_module(module: str) -> list[str]:
    """Returns the options of Python that run a module of tfdist, in place of `-m MODULE`."""
    run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return ["-c", WITHOUT_CURRENT_DIRECTORY + run]


def is_own(module: str) -> bool:
    """Whether a module is a part of tfdist."""
    return module.partition(".")[0] == "tfdist"
