"""Prints constraints/hosted.txt: every wheel that a hosted job installs, with its hash.

pip's own report says which files it would take for this Python and platform, so run it on Linux
x86_64 with the Python that `action.yml` names: `make hosted-lock`.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import subprocess
import sys

HEAD = """\
# What jobs on hosted runners install, and nothing else: Linux x86_64, CPython 3.11, with hashes.
# Written by `make hosted-lock` from pyproject.toml and constraints/ci.txt; do not edit.
"""


def main() -> int:
    """Ask pip what it would install and print that as a requirements file."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--dry-run", "--ignore-installed", "--report", "-", "--only-binary", ":all:",
            "--no-build-isolation", "--constraint", "constraints/ci.txt",
            ".[github]", "setuptools"]  # fmt: skip
    report = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    lines = []
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if name == "fla-bot":
            continue
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name.lower()}=={version} --hash=sha256:{digest}")
    sys.stdout.write(HEAD + "\n".join(sorted(lines)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
