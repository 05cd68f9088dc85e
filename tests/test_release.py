"""What is built is what is installed: wheel and source distribution, where nothing else is; needs a package index."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NOT_RELEASED = {".ci/run"}
IMPORT_ALL = """
import importlib, pkgutil, penstock
extras = {"penstock.__main__", "penstock.vllm_plugin", "penstock.serving.app", "penstock.serving.connections"}
for name in {module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")} - extras:
    importlib.import_module(name)
"""


def said(*command: object, **more: Path) -> str:
    environment = {**os.environ, "COLUMNS": "96"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    said(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder / f"penstock_llm-{VERSION}.tar.gz", folder / f"penstock_llm-{VERSION}-py3-none-any.whl"


def install(environment: Path, *what: object) -> None:
    said(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--no-compile", *what)


def answers_once_installed(python: str, built: tuple[Path, Path], folder: Path) -> Path:
    """Install the wheel alone, ask it about an example of the source distribution, and return the environment."""
    source, wheel = built
    said(python, "-m", "venv", "--without-pip", folder / "environment")
    install(folder / "environment", wheel)
    example = f"penstock_llm-{VERSION}/examples/azure_code.yaml"
    shutil.unpack_archive(source, folder)
    answer = said(folder / "environment" / "bin" / "penstock", "check", example, cwd=folder)
    assert "Proved: Theorem 1(b)" in " ".join(answer.split())  # however wide the terminal is
    return folder / "environment"


@pytest.mark.release
def test_the_wheel_is_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    files = (path for path in (ROOT / "src" / "penstock").rglob("*") if path.is_file())
    package = {str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts}
    held = set(zipfile.ZipFile(built[1]).namelist())
    about = {f"penstock_llm-{VERSION}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    assert held == package | about | {f"penstock_llm-{VERSION}.dist-info/licenses/LICENSE"}


@pytest.mark.release
def test_the_source_distribution_is_all_that_is_kept(built: tuple[Path, Path]) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("what is kept is known in a clone")
    kept = {*subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()}
    with tarfile.open(built[0]) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames()}
    assert kept - held == NOT_RELEASED
    assert not [name for name in held if "__pycache__" in name or name.endswith((".nbi", ".nbc", ".pyc"))]


@pytest.mark.release
def test_both_install_and_answer_where_nothing_else_is(built: tuple[Path, Path], tmp_path: Path) -> None:
    environment = answers_once_installed(sys.executable, built, tmp_path)
    said(environment / "bin" / "python", "-c", IMPORT_ALL)
    install(environment, "--no-deps", "--force-reinstall", built[0])
    assert said(environment / "bin" / "penstock", "--version") == f"{VERSION}\n"


@pytest.mark.pythons
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_other_pythons_answer_too(built: tuple[Path, Path], tmp_path: Path, version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no python{version} on the PATH")
    answers_once_installed(python, built, tmp_path)
