"""Finds things in rendered manifests. Knows nothing of what they should be."""

from typing import Any

from tests.chart.conftest import Manifest


def find(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of a kind (and name)."""
    found = [m for m in manifests if m["kind"] == kind and name in ("", m["metadata"]["name"])]
    assert len(found) == 1, [(m["kind"], m["metadata"]["name"]) for m in manifests]
    return found[0]


def kinds(manifests: list[Manifest]) -> set[str]:
    """What kinds there are."""
    return {manifest["kind"] for manifest in manifests}


def deployment(manifests: list[Manifest]) -> dict[str, Any]:
    """The Deployment's spec."""
    return dict(find(manifests, "Deployment")["spec"])


def pod(manifests: list[Manifest]) -> dict[str, Any]:
    """The pods' spec."""
    return dict(deployment(manifests)["template"]["spec"])


def pod_labels(manifests: list[Manifest]) -> dict[str, str]:
    """The pods' labels."""
    return dict(deployment(manifests)["template"]["metadata"]["labels"])


def container(manifests: list[Manifest], name: str) -> dict[str, Any]:
    """A container of the pods."""
    return dict(next(c for c in pod(manifests)["containers"] if c["name"] == name))


def flags(manifests: list[Manifest], name: str) -> dict[str, str]:
    """A container's flags."""
    pairs = (flag.removeprefix("--").partition("=") for flag in container(manifests, name)["args"])
    return {flag: value for flag, _, value in pairs}


def mounts(manifests: list[Manifest], name: str) -> dict[str, str]:
    """A container's mounts: path to volume."""
    return {m["mountPath"]: m["name"] for m in container(manifests, name)["volumeMounts"]}


def volumes(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    """The pods' volumes by name."""
    return {volume["name"]: volume for volume in pod(manifests)["volumes"]}
