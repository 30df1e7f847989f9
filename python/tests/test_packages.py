"""Packages of local directories: what is in them, and their names."""

from __future__ import annotations

import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedulemesh import packages
from schedulemesh.environments import portable
from schedulemesh.errors import InvalidArgument

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a directory with files in it."""

    def directory(name: str = "project", **files: str) -> Path:
        top = tmp_path / name
        top.mkdir(exist_ok=True)
        for path, text in files.items():
            file = top / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return top

    return directory


def content(package: packages.Package) -> dict[str, str]:
    with package.pack() as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def names(directory: Path, *excludes: str) -> list[str]:
    return sorted(content(packages.package_directory(directory, excludes)))


def test_the_content_is_there_with_names_relative_to_the_directory(make: Make) -> None:
    project = make(**{"main.py": "print(1)", "lib/a.py": "", "训练/数据.txt": "一"})
    (project / "empty").mkdir()
    package = packages.package_directory(project)
    assert content(package) == {"main.py": "print(1)", "lib/a.py": "", "训练/数据.txt": "一", "empty/": ""}
    assert package.size == len("print(1)") + len("一".encode())


def test_a_module_keeps_the_name_of_its_directory(make: Make) -> None:
    module = make("mine", **{"__init__.py": "", "sub/x.py": "x"})
    [package] = portable({"py_modules": [str(module)]})[1]
    assert sorted(content(package)) == ["mine/__init__.py", "mine/sub/x.py"]


def test_the_same_content_has_the_same_name_and_any_other_another(make: Make, tmp_path: Path) -> None:
    def name(**more: str) -> str:
        nonlocal made
        made += 1
        files = {"a.py": "1", "b/c.py": "2"} | more
        return packages.package_directory(make(f"p{made}", **files)).name

    made = 0
    first = name()
    assert first.startswith("_ray_pkg_")
    os.utime(tmp_path / "p1" / "a.py", (1, 1))
    assert packages.package_directory(tmp_path / "p1").name == first
    assert name() == first
    others = [name(**{"a.py": "2"}), name(**{"b/d.py": "2"}), name(**{"a.py": "12", "b/c.py": ""})]
    (tmp_path / "p1" / "a.py").chmod(0o755)
    others.append(packages.package_directory(tmp_path / "p1").name)
    (tmp_path / "p2" / "e").mkdir()
    others.append(packages.package_directory(tmp_path / "p2").name)
    others.append(packages.package_directory(tmp_path / "p2", keep_name=True).name)
    assert len({first, *others}) == 7


def test_two_packings_are_equal_to_the_byte(make: Make) -> None:
    package = packages.package_directory(make(**{"a.py": "1" * 5000, "b.py": "2"}))
    with package.pack() as one, package.pack() as other:
        assert one.read() == other.read()


def test_whether_a_file_can_be_executed_is_kept(make: Make) -> None:
    project = make(**{"run.sh": "", "x.py": ""})
    (project / "run.sh").chmod(0o755)
    with packages.package_directory(project).pack() as file, zipfile.ZipFile(file) as archive:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    assert modes == {"run.sh": 0o755, "x.py": 0o644}


def test_what_is_excluded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        "main.py",
        "x.log",
        "tmp/a",
        "lib/tmp/a",
        "lib/y.log",
        ".git/config",
        "__pycache__/m.pyc",
        "d/keep.log",
    ]
    project = make(**dict.fromkeys(files, "x"))
    assert names(project) == sorted(f for f in files if not f.startswith((".git", "__py")))
    packed = names(project, "*.log", "/tmp/*")
    assert [name for name in packed if not name.endswith("/")] == ["lib/tmp/a", "main.py"]
    monkeypatch.setenv("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", "")
    assert ".git/config" in names(project)


def test_ignore_files_count_where_they_are(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make(
        **{
            ".gitignore": "*.log\nbuild/\n!kept.log\n",
            "a.log": "",
            "kept.log": "",
            "build/x": "",
            "lib/.gitignore": "/own\n!a.log\n",
            "lib/own": "",
            "lib/a.log": "",
            "own": "",
            "lib/.rayignore": "data/\n",
            "lib/data/d": "",
            "data/d": "",
        }
    )
    packed = [".gitignore", "data/d", "kept.log", "lib/.gitignore", "lib/.rayignore", "lib/a.log", "own"]
    assert names(project) == packed
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    assert names(project) == sorted([*packed, "a.log", "build/x", "lib/own"])


def test_links_are_followed_and_what_cannot_be_packed_is_left_out_with_a_word(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = make("other", **{"data.txt": "there", "deep/x": "y"})
    project = make(**{"main.py": ""})
    (project / "file").symlink_to(other / "data.txt")
    (project / "directory").symlink_to(other)
    (project / "gone").symlink_to(tmp_path / "nowhere")
    (project / "loop").symlink_to(project)
    (project / "itself").symlink_to(project / "itself")
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(project / "socket"))
        packed = content(packages.package_directory(project))
    assert packed == {"main.py": "", "file": "there", "directory/data.txt": "there", "directory/deep/x": "y"}
    said = caplog.text
    for name in ("gone", "loop", "itself", "pipe", "socket"):
        assert f"{project}/{name} is left out" in said


def test_what_cannot_be_read_is_named(make: Make) -> None:
    project = make(secret="x")
    if os.getuid() == 0:  # who reads everything, but for this
        (project / "secret").unlink()
        (project / "secret").symlink_to("/proc/self/mem")
    else:
        (project / "secret").chmod(0)
    with pytest.raises(InvalidArgument, match=r"secret cannot be read.*excludes"):
        packages.package_directory(project)


def test_a_file_that_goes_away_is_named(make: Make) -> None:
    package = packages.package_directory(make(a="x", b="y"))
    (package.source / "b").unlink()
    with pytest.raises(InvalidArgument, match=r"/b cannot be read.*No such file"):
        package.pack()


def test_a_file_that_changes_meanwhile_is_said(make: Make) -> None:
    package = packages.package_directory(make(a="x"))
    (package.source / "a").write_text("z")
    with pytest.raises(InvalidArgument, match="changed while they were packed"):
        package.pack()


def test_too_much_is_refused_before_it_is_read_and_the_largest_are_named(make: Make) -> None:
    project = make(small="x")
    for name, size in (("huge.bin", 400 << 20), ("large.bin", 200 << 20)):
        with (project / name).open("wb") as file:
            file.truncate(size)  # sparse
    with pytest.raises(
        InvalidArgument, match=r"600\.0 MiB, and 500\.0 MiB is the most.*huge\.bin \(400\.0 MiB\), large\.bin"
    ):
        packages.package_directory(project)
    assert names(project, "huge.bin") == ["large.bin", "small"]


def test_progress_of_what_is_large(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    clock = iter(range(1000))
    monkeypatch.setattr("schedulemesh.packages.time.monotonic", lambda: float(next(clock)))
    project = make(large="x" * (6 << 20))
    packages.package_directory(project)
    assert f"reading {project}: 6.0 MiB of 6.0 MiB" in capsys.readouterr().err
    packages.package_directory(make("small", a="x"))
    assert capsys.readouterr().err == ""


# Runtime environments.


def test_paths_become_packages_and_the_rest_stays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make(**{"main.py": "", "x.log": "", "mine.py": ""})
    monkeypatch.chdir(project.parent)
    given = {
        "working_dir": "project",
        "py_modules": [project / "mine.py", "s3://bucket/mine.zip"],
        "excludes": ["*.log"],
        "env_vars": {"A": "1"},
        "pip": ["numpy"],
    }
    env, made = portable(given)
    assert env == {
        "working_dir": made[0].uri,
        "py_modules": [made[1].uri, "s3://bucket/mine.zip"],
        "env_vars": {"A": "1"},
        "pip": ["numpy"],
    }
    assert sorted(content(made[0])) == ["main.py", "mine.py"]
    assert sorted(content(made[1])) == ["mine.py"]
    assert given["excludes"] == ["*.log"]
    assert portable({"working_dir": "gcs://_ray_pkg_1.zip", "excludes": ["x"]}) == (
        {"working_dir": "gcs://_ray_pkg_1.zip", "excludes": ["x"]},
        [],
    )


def test_an_imported_module_is_packed() -> None:
    import json as module

    [package] = portable({"py_modules": [module]})[1]
    assert "json/decoder.py" in content(package)


def test_wheels_and_zip_files_are_packages_already(make: Make, tmp_path: Path) -> None:
    wheel = tmp_path / "mine-1.0-py3-none-any.whl"
    wheel.write_bytes(b"one")
    archive = tmp_path / "project.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("main.py", "x")
    env, made = portable({"working_dir": str(archive), "py_modules": [str(wheel)]})
    assert content(made[0]) == {"main.py": "x"}
    first = made[1].name
    assert first.startswith("mine-1.0-0")
    assert first.endswith("-py3-none-any.whl")
    assert env["py_modules"] == ["gcs://" + first]
    with made[1].pack() as file:
        assert file.read() == b"one"
    wheel.write_bytes(b"two")
    assert portable({"py_modules": [str(wheel)]})[1][0].name != first


def test_files_with_requirements_are_read(make: Make) -> None:
    project = make(**{"requirements.txt": "numpy>=1.21\n\n  pandas\n", "env.yaml": "dependencies: [pip]\n"})
    file = str(project / "requirements.txt")
    wanted = ["numpy>=1.21", "pandas"]
    assert portable({"pip": file})[0] == {"pip": wanted}
    assert portable({"uv": {"packages": file, "uv_version": "1"}})[0]["uv"]["packages"] == wanted
    assert portable({"conda": str(project / "env.yaml")})[0] == {"conda": {"dependencies": ["pip"]}}
    assert portable({"conda": "an-environment"})[0] == {"conda": "an-environment"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("env", "runtime_env must be a dict, not str"),
        ({1: 2}, "keys must be strings"),
        ({"env_vars": {"A": {1, 2}}}, "cannot be sent as JSON"),
        ({"x": float("nan")}, "cannot be sent as JSON"),
        ({"working_dir": "/no/where"}, "there is no /no/where on this machine"),
        ({"working_dir": 7}, "working_dir must be a path or a URI, not 7"),
        ({"working_dir": ""}, "working_dir must be a path"),
        ({"working_dir": "/dev/null"}, "must be a directory or a .zip file"),
        ({"py_modules": "/tmp"}, "py_modules must be a list"),
        ({"py_modules": ["/dev/null"]}, r"must be a directory, a .py or a .whl"),
        ({"py_modules": [3]}, "py_modules must be a path"),
        ({"working_dir": "/tmp", "excludes": "*.log"}, "excludes must be a list"),
        ({"pip": "/no/requirements.txt"}, "'/no/requirements.txt' of runtime_env's pip cannot be read"),
        ({"conda": "/no/env.yaml"}, "conda cannot be read"),
    ],
)
def test_what_is_no_runtime_environment(given: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        portable(given)


def test_a_runtime_environment_of_100_mb_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidArgument, match=r"has 1000000\d\d bytes as JSON, and 1048576 is the most"):
        portable({"env_vars": {"A": "x" * 100_000_000}})
