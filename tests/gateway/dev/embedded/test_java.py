from pathlib import Path

import pytest

from sluiceway_gateway.dev.embedded import JavaMissing, find_java


def _java(directory: Path, script: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _java(tmp_path, "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == program


def test_without_java_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="openjdk-17-jre-headless") as caught:
        find_java()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'java version \"1.8.0_402\"' >&2", "is Java 8"),
        ("echo 'openjdk version \"11.0.22\" 2024-01-16' >&2", "is Java 11"),
        ("echo nonsense", "of an unknown version"),
        ("exit 3", "does not run"),
    ],
)
def test_an_unusable_java_is_named(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=said):
        find_java()
