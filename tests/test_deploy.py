"""What deploys homo_dp is well formed, hardened, and starts from configs that are ours."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from homo_dp.config.load import load_config
from homo_dp.main import commands
from homo_dp.transport.revocation import parse_revoked

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def unit(path: Path) -> dict[str, str]:
    """The [Service] section; of a key that stands there twice, the last."""
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return dict(parser["Service"])


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def pod(path: Path) -> dict[str, Any]:
    (spec,) = [
        found["spec"]["template"]["spec"]
        for found in documents(path)
        if found["kind"] in ("StatefulSet", "Job")
    ]
    assert isinstance(spec, dict)
    return spec


def stages(text: str) -> dict[str, str]:
    """The Dockerfile's text by target."""
    parts = re.split(r"^FROM (\S+) AS (\S+)$", text, flags=re.M)[1:]
    return {parts[at + 1]: parts[at] + parts[at + 2] for at in range(0, len(parts), 3)}


@pytest.mark.parametrize(
    "path", sorted((DEPLOY / "conf").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_configs_are_ours(path: Path) -> None:
    config = load_config(path)
    assert config.transport.kind == "nats"
    assert config.private


@pytest.mark.parametrize("side", ["party", "aggregator"])
def test_the_configs_write_where_unit_image_volumes_and_pods_let_them(side: str) -> None:
    config = load_config(DEPLOY / "conf" / f"{side}.yaml")
    instance = config.party.name or str(config.federation.run)
    service = unit(DEPLOY / "systemd" / f"homo-dp-{side}@.service")
    state = "/var/lib/" + service["StateDirectory"].replace("%i", instance)
    output = config.output
    written = [output.indicatorFileName, output.modelFileName]
    if side == "party":
        written += [str(config.party.folder), config.privacy.ledger, output.predictFileName]
    else:
        written += [config.federation.state_dir]
        # heads of ledgers are remembered over all runs
        assert "%i" not in service["StateDirectory"]
        (claim,) = [
            each
            for each in documents(DEPLOY / "kubernetes" / "aggregator.yaml")
            if "Claim" in each["kind"]
        ]
        assert claim["metadata"]["name"] != config.federation.run
    assert all(str(path).startswith(f"{state}/") for path in written)
    assert service["WorkingDirectory"].replace("%i", instance) == state
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][side]
    assert f"{side}-state:/var/lib/homo_dp" in compose["volumes"]
    mounts = {
        each["mountPath"]
        for each in pod(DEPLOY / "kubernetes" / f"{side}.yaml")["containers"][0]["volumeMounts"]
    }
    assert "/var/lib/homo_dp" in mounts
    assert 'VOLUME ["/var/lib/homo_dp"]' in (ROOT / "Dockerfile").read_text()


def test_a_list_of_revoked_keys_is_there_and_reaches_running_pods() -> None:
    assert parse_revoked((DEPLOY / "conf" / "revoked").read_text()) == (frozenset(), frozenset())
    for path in MANIFESTS:
        named = load_config(DEPLOY / "conf" / path.name).transport.revoked_keys
        spec = pod(path)
        (mount,) = [
            each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "revoked"
        ]
        assert str(Path(str(named)).parent) == mount["mountPath"]
        assert "subPath" not in mount  # such a mount is never renewed
        assert {"name": "revoked", "configMap": {"name": "homo-dp-revoked"}} in spec["volumes"]


def test_both_images_run_without_rights_and_start_a_command_of_ours() -> None:
    found = stages((ROOT / "Dockerfile").read_text())
    assert {"party", "aggregator"} <= set(found)
    assert "USER 10001:10001" in found["base"]
    for name in ("party", "aggregator"):
        assert found[name].startswith("base")
        entry = re.search(r'ENTRYPOINT \["homo-dp", "(\w+)"', found[name])
        assert entry is not None
        assert entry[1] == name
        assert name in commands()
    copied = [
        line.split()[1]
        for line in found["build"].splitlines()
        if line.startswith("COPY") and "--" not in line
    ]
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert all(f"!{each}" in ignored and (ROOT / each).exists() for each in copied)


def test_compose_gives_no_service_a_right_or_a_disk_it_does_not_need() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in found["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["user"] == "10001:10001", name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        named = [
            volume.split(":")[0] for volume in service["volumes"] if not volume.startswith("$")
        ]
        assert set(named) <= set(found["volumes"]), name
        assert all(
            volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("$")
        ), name
    targets = stages((ROOT / "Dockerfile").read_text())
    assert all(
        service["build"]["target"] in targets
        for service in found["services"].values()
        if "build" in service
    )


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_run_as_a_user_of_their_own_behind_walls(path: Path) -> None:
    service = unit(path)
    assert service["User"] not in ("", "root")
    for key in (
        "NoNewPrivileges",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "RestrictSUIDSGID",
    ):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    words = service["ExecStart"].split()
    others = ("flower-supernode", "nats-server")
    assert words[1] in commands() if words[0].endswith("homo-dp") else words[0].endswith(others)


def test_a_supernode_reaches_the_socket_of_its_party_and_no_file_of_it() -> None:
    service = unit(DEPLOY / "systemd" / "homo-dp-supernode@.service")
    party = unit(DEPLOY / "systemd" / "homo-dp-party@.service")
    assert service["User"] != party["User"]
    assert 'socket="' in service["ExecStart"]
    assert "/var/lib/homo_dp" in service["InaccessiblePaths"]
    assert (
        "FLWR_TELEMETRY_ENABLED=0"
        in (DEPLOY / "systemd" / "homo-dp-supernode@.service").read_text()
    )


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_run_without_rights_and_their_configs_are_ours(path: Path, tmp_path: Path) -> None:
    spec = pod(path)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    volumes = {volume["name"] for volume in spec["volumes"]} | {"state"}
    for container in (*spec["initContainers"], *spec["containers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    (config,) = [found["data"] for found in documents(path) if found["kind"] == "ConfigMap"]
    (tmp_path / "config.yaml").write_text(config[path.name])
    assert load_config(tmp_path / "config.yaml") == load_config(DEPLOY / "conf" / path.name)


def test_one_process_spends_one_ledger() -> None:
    (found,) = [
        each
        for each in documents(DEPLOY / "kubernetes" / "party.yaml")
        if each["kind"] == "StatefulSet"
    ]
    assert found["spec"]["replicas"] == 1
    assert found["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]
