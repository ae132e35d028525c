"""Names of images mean what they mean to Docker, and credentials are sent as AWS wants them."""

from __future__ import annotations

import datetime

import httpx
import pytest

from sandkeeper.engine.images.credentials import AwsForm, sign_for_aws
from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.reference import LocalImage, RegistryImage, parse_reference

HUB = "registry-1.docker.io"
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("name", "host", "repository", "reference"),
    [
        ("python:3.12", HUB, "library/python", "3.12"),
        ("python", HUB, "library/python", "latest"),
        ("docker.io/oven/bun:1", HUB, "oven/bun", "1"),
        ("ghcr.io/a/b-c/d_e", "ghcr.io", "a/b-c/d_e", "latest"),
        ("localhost/x", "localhost", "x", "latest"),
        ("localhost:5000/x:y", "localhost:5000", "x", "y"),
        ("[::1]:5000/x", "[::1]:5000", "x", "latest"),
        (f"python:3@{DIGEST}", HUB, "library/python", DIGEST),
    ],
)
def test_a_name_is_read_as_docker_does(
    name: str, host: str, repository: str, reference: str
) -> None:
    assert parse_reference(name) == RegistryImage(host, repository, reference)


def test_a_file_of_this_machine_is_named_as_skopeo_does() -> None:
    assert parse_reference("oci:app:v1") == LocalImage("app", "v1")
    assert parse_reference("docker-archive:app.tar") == LocalImage("app.tar", None)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Python",
        "a b",
        "../x",
        "x:",
        "x:a/b/c d",
        "x@sha256:1",
        "oci:",
        "http://h/x",
        "-x/y",
        "x" * 2000,
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ImageError):
        parse_reference(name)


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *((host, True) for host in ("localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5")),
        *((host, False) for host in ("127.0.0.1.example.com", "ghcr.io", "10.0.0.1:5000")),
    ],
)
def test_only_loopback_may_be_asked_without_tls(host: str, is_here: bool) -> None:
    assert RegistryImage(host, "x", "y").is_on_this_machine is is_here


def test_a_request_to_aws_is_signed_as_in_its_documentation() -> None:
    request = httpx.Request(
        "GET",
        "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
        headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
    )
    form = AwsForm(
        type="aws",
        awsAccessKeyId="AKIDEXAMPLE",
        awsSecretAccessKey="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        awsRegion="us-east-1",
    )
    at = datetime.datetime(2015, 8, 30, 12, 36, tzinfo=datetime.UTC)
    assert sign_for_aws(request, form, "iam", at).endswith(
        "SignedHeaders=content-type;host;x-amz-date, "
        "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    )
    assert "wJalr" not in repr(form)
