"""A program in place of ssh: it runs commands on this machine, as a login of another one would."""

from __future__ import annotations

import os
import stat

_SCRIPT = r"""#!/bin/bash
printf '%s\n' "$@" >> {folder}/ssh-arguments
case "${{@: -2:1}}" in
  127.0.0.8) echo "Welcome to node 8"; exec sleep 60;;
  127.0.0.9) echo "ssh: connect to host 127.0.0.9 port 22: No route to host" >&2; exit 255;;
esac
# Nothing of the launcher's environment travels but by the connection.
exec env -i HOME="$HOME" TMPDIR="{folder}" TFDIST_SECRET_FILE=/of/another/job sh -c "${{@: -1}}"
"""


def make_fake_ssh(folder):
    """Writes the program into a folder; returns its path.

    The host 127.0.0.9 is unreachable, and the login of 127.0.0.8 prints a greeting. The file
    `ssh-arguments` gets all command lines.
    """
    program = folder / "fake-ssh"
    program.write_text(_SCRIPT.format(folder=folder))
    os.chmod(program, stat.S_IRWXU)
    return program
