import hashlib
import socket
import time
from pathlib import Path

import pytest

from sluiceway_gateway.dev.embedded.jars import JarsUnavailable, differences, fetch_jars, kafka_jars


def test_the_cache_holds_exactly_the_pinned_jars() -> None:
    assert differences(fetch_jars(kafka_jars()), kafka_jars().sums) == []


@pytest.fixture
def broken_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of links to the jars, for tests to modify."""
    good = fetch_jars(kafka_jars())
    monkeypatch.setenv("SLUICEWAY_CACHE_DIR", str(tmp_path))
    copy = tmp_path / good.name
    copy.mkdir()
    for jar in good.glob("*.jar"):
        (copy / jar.name).symlink_to(jar)
    return copy


def test_a_changed_jar_is_refused_by_name(broken_cache: Path) -> None:
    jar = broken_cache / "jspecify-1.0.0.jar"
    jar.unlink()
    jar.write_bytes(b"something else")
    with pytest.raises(JarsUnavailable, match=r"jspecify-1\.0\.0\.jar has another SHA-256 sum"):
        fetch_jars(kafka_jars())


def test_missing_and_unexpected_jars_are_refused(broken_cache: Path) -> None:
    (broken_cache / "jspecify-1.0.0.jar").rename(broken_cache / "zz-strange.jar")
    with pytest.raises(JarsUnavailable, match=r"is missing.*zz-strange\.jar is not expected"):
        fetch_jars(kafka_jars())


def test_a_cache_that_cannot_be_written_is_refused_only_without_the_jars(
    broken_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The user of the tests may write everywhere.
    lock = broken_cache.parent / f"{kafka_jars().name}.lock"
    lock.mkdir()
    assert fetch_jars(kafka_jars()) == broken_cache
    monkeypatch.setenv("SLUICEWAY_CACHE_DIR", str(lock / "cache"))
    (lock / "cache").touch()
    with pytest.raises(JarsUnavailable, match=r"cannot be kept in .*SLUICEWAY_CACHE_DIR"):
        fetch_jars(kafka_jars())


def test_a_cache_below_a_directory_without_access_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The user of the tests has access to all directories; this is the same for any look at one.
    monkeypatch.setenv("SLUICEWAY_CACHE_DIR", str(tmp_path / ("c" * 300)))
    with pytest.raises(JarsUnavailable, match=r"File name too long.*SLUICEWAY_CACHE_DIR"):
        fetch_jars(kafka_jars())


def test_a_failed_download_has_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "ivysettings.xml"
    nowhere = tmp_path / "nowhere"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{nowhere}/[artifact]-[revision].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    monkeypatch.setenv("SLUICEWAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SLUICEWAY_IVY_SETTINGS", str(settings))
    with pytest.raises(JarsUnavailable, match=r"(?s)could not be fetched.*SLUICEWAY_IVY_SETTINGS"):
        fetch_jars(kafka_jars())
    left = [path.name for path in (tmp_path / "cache").iterdir()]
    assert left == ["kafka-4.3.1.lock"], "a failed fetch leaves nothing that looks like a cache"


def test_a_download_that_hangs_ends_in_time_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = tmp_path / "ivysettings.xml"
        settings.write_text(
            '<ivysettings><settings defaultResolver="silent"/><resolvers><ibiblio name="silent" '
            f'm2compatible="true" root="http://127.0.0.1:{silent.getsockname()[1]}/"/>'
            "</resolvers></ivysettings>"
        )
        monkeypatch.setenv("SLUICEWAY_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("SLUICEWAY_IVY_SETTINGS", str(settings))
        begun_s = time.monotonic()
        with pytest.raises(JarsUnavailable, match=r"within 3 s; 0 of \d+ jars.*https\.proxyHost"):
            fetch_jars(kafka_jars(), timeout_s=3.0)
        assert time.monotonic() - begun_s < 60
    left = [path.name for path in (tmp_path / "cache").iterdir()]
    assert left == ["kafka-4.3.1.lock"]


def test_the_comparison_reads_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"a")
    assert differences(tmp_path, {"a.jar": hashlib.sha256(b"a").hexdigest()}) == []
    assert differences(tmp_path, {"a.jar": hashlib.sha256(b"b").hexdigest()}) == [
        "a.jar has another SHA-256 sum"
    ]
