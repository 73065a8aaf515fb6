"""What pyproject.toml cannot say: the wheel carries native binaries, so it is built first and fits one platform, and
the pages of docs/, which lie outside the package.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildPy(build_py):
    """Builds the native binaries before the package's files are gathered."""

    def run(self) -> None:
        """Gather the files; in an editable install (setup/install) the binaries are built beside."""
        if not self.editable_mode and subprocess.run([HERE / "setup" / "native"], check=False).returncode != 0:
            sys.exit("virtoll's native binaries could not be built\n    -> install cargo (https://rustup.rs) and retry")
        super().run()
        if not self.editable_mode:
            self._take_manual()

    def _take_manual(self) -> None:
        """Lay docs/*.md where `virtoll help` looks for them first (virtoll/manual.py)."""
        target = Path(self.build_lib) / "virtoll" / "docs"
        target.mkdir(parents=True, exist_ok=True)
        for page in sorted((HERE / "docs").glob("*.md")):
            shutil.copyfile(page, target / page.name)


class PlatformWheel(bdist_wheel):
    """Static binaries: any Python 3, Linux on x86_64."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag."""
        return "py3", "none", "linux_x86_64"


class NativeDistribution(Distribution):
    """Not pure Python, though it has no extension modules."""

    def has_ext_modules(self) -> bool:
        """Whether files lie where a platform's own do."""
        return True


setup(distclass=NativeDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": PlatformWheel})
