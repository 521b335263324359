"""The package as others get it: every room in the wheel, no stray names, pinned versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("ir", "frontend", "passes", "partitioner", "codegen", "runtime")
FACE = ("cli", "report")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("source") / "stagecut"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", *ROOMS):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    folder = copy.parent / "wheel"
    subprocess.run([*pip, "--wheel-dir", str(folder), str(copy)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_of_every_room(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for room in ROOMS:
        sources = {f"stagecut/{path.relative_to(ROOT)}" for path in (ROOT / room).rglob("*.py")}
        assert sources, room
        assert sources <= names, sorted(sources - names)
    for folder in FACE:
        assert f"stagecut/{folder}/__init__.py" in names
    assert "stagecut/py.typed" in names


def test_the_wheel_installs_one_top_level_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"stagecut"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_package_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import stagecut.ir.plan, stagecut.partitioner.solve, stagecut.cli, sys\n"
        "print(stagecut.ir.plan.__file__)\n"
        "sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )
    assert result.stdout.startswith(str(tmp_path / "site"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_a_relative_link(room: str) -> None:
    link = ROOT / "src" / "stagecut" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{room}"


@pytest.mark.parametrize("module", ["stagecut", "stagecut.ir.plan", "stagecut.partitioner"])
def test_what_needs_no_torch_loads_none(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def _project() -> dict[str, object]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project: dict[str, object] = document["project"]
    return project


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {_canonical(name): version for name, version in pairs}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned() -> None:
    project = _project()
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]  # type: ignore[misc,index]
    names = {_canonical(re.split(r"[<>=]", requirement)[0]) for requirement in wanted}
    assert names <= set(_pins())


def test_the_readme_names_the_two_commands() -> None:
    """Their targets exist; the server's own script runs them both."""
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
        assert re.search(rf"^make .*{target}$", script, re.MULTILINE)


def test_nothing_but_the_servers_script_looks_outside_the_repository() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    outside = "../" + "shared"
    offenders = [
        name
        for name in tracked
        if (ROOT / name).is_file()
        and not (ROOT / name).is_symlink()
        and name != ".ci/run"
        and outside in (ROOT / name).read_text(errors="ignore")
    ]
    assert offenders == []
