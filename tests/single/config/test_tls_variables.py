"""The variables of encrypted connections, and the secrets that are good enough for them."""

from __future__ import annotations

import base64
import secrets

import pytest

from tfdist.config import tls
from tfdist.config.job_file import JobFile
from tfdist.config.settings import Settings, environment_with_tls, secret_variables
from tfdist.config.tls import Tls
from tfdist.errors import ClusterConfigError

SECRET = secrets.token_hex(16)
FILES = {"TFDIST_TLS_CERT": "a.pem", "TFDIST_TLS_KEY": "a.key", "TFDIST_TLS_CA": "ca.pem"}


def test_what_asks_for_tls():
    def found(**environ):
        return Settings.from_environment(environ).tls

    assert found() is None and found(TFDIST_SECRET=SECRET, TFDIST_TLS=" ") is None
    assert found(TFDIST_SECRET=SECRET, TFDIST_TLS="secret") == Tls(secret=SECRET.encode())
    assert found(**FILES) == Tls("a.pem", "a.key", "ca.pem")
    # A short secret signs calls; certificates do not come from it.
    assert found(TFDIST_SECRET="sixteen bytes...", **FILES) == found(**FILES)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TFDIST_TLS": "1"}, "TFDIST_TLS: expected 'secret', or none and .* received '1'"),
        ({"TFDIST_TLS": "secret"}, "expected the job's secret .* received none; 'openssl rand"),
        (
            {"TFDIST_TLS": "secret", "TFDIST_SECRET": SECRET, "TFDIST_TLS_KEY": "a.key"},
            "expected either .* received TFDIST_TLS=secret and TFDIST_TLS_KEY$",
        ),
        ({"TFDIST_TLS_CERT": "a.pem"}, "received no TFDIST_TLS_KEY, TFDIST_TLS_CA$"),
        (
            {"TFDIST_TLS": "secret", "TFDIST_SECRET": SECRET[:31]},
            "128 random bits, .* received one of 31 hexadecimal digits; 'openssl rand -hex 32' m",
        ),
    ],
)
def test_contradictions(environ, message):
    with pytest.raises(ClusterConfigError, match=message):
        Settings.from_environment(environ)


@pytest.mark.parametrize(
    ("secret", "weakness"),
    [
        (b"correct horse battery staple", "that is neither hexadecimal nor base64"),
        (b"mysupersecretpasswordofthejob", "without both capital and small letters"),
        (b"MySecretOfThisJob1", "of 18 base64 characters"),
        (b"my-secret-of-2026", "of 17 base64 characters"),
        (b"ab" * 16, "with 2 different characters"),
        (b"a" * 32, "with 1 different character"),
        (b"0123456789abcdef" * 2, "that repeats itself"),
        (b"\xff" * 8, "of 8 bytes"),
    ],
)
def test_what_could_be_guessed(secret, weakness):
    found = tls.weakness(secret)
    assert found == weakness or found.startswith(f"{weakness},")
    with pytest.raises(ClusterConfigError) as caught:
        tls.from_environment({"TFDIST_TLS": "secret"}, secret)
    assert secret.decode("latin-1") not in str(caught.value)


def test_random_secrets_are_accepted():
    for _ in range(500):
        random = secrets.token_bytes(16)
        for secret in (
            random.hex().encode(),
            base64.b64encode(random),
            base64.urlsafe_b64encode(random).rstrip(b"="),
            # A file of plain bytes is stripped, so it has more.
            b"\xff" + random,
        ):
            assert tls.weakness(secret) == "", secret


def test_the_secret_is_not_shown():
    assert SECRET not in repr(Settings.from_environment({"TFDIST_TLS": "secret"} | given()))


def given():
    return {"TFDIST_SECRET": SECRET}


def test_the_option_chooses_the_secret_unless_there_are_files():
    assert environment_with_tls(given()) == {**given(), "TFDIST_TLS": "secret"}
    assert environment_with_tls({**given(), **FILES}) == {**given(), **FILES}


@pytest.mark.parametrize("environ", [{"TFDIST_TLS": "secret"}, FILES])
def test_a_job_file_tells_it(tmp_path, environ):
    origin = tls.from_environment(environ, SECRET.encode())
    assert origin is not None
    file = JobFile("{}", SECRET, tls=origin.variables)
    with file.written(tmp_path / "job.json") as path:
        assert JobFile.read(path) == file and JobFile.read(path).encryption == origin
    assert JobFile("{}", SECRET).encryption is None


@pytest.mark.parametrize("text", ['{"LD_PRELOAD": "x"}', '{"TFDIST_TLS": 1}', "[]", '"secret"'])
def test_other_variables_in_a_job_file(tmp_path, text):
    (tmp_path / "job.json").write_text(f'{{"cluster": "{{}}", "tls": {text}}}')
    with pytest.raises(ClusterConfigError, match="'tls' that are no variables of TLS by name"):
        JobFile.read(tmp_path / "job.json")


@pytest.mark.parametrize("environ", [{"TFDIST_TLS": "secret"}, FILES, {}])
def test_jobs_on_ray_have_the_variables_of_their_driver(monkeypatch, environ):
    for name in ("TFDIST_SECRET", "TFDIST_SECRET_FILE", *tls.VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = secret_variables()
    assert len(bytes.fromhex(found.pop("TFDIST_SECRET"))) == 32
    assert found == environ
