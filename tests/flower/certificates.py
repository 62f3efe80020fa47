"""A certificate for 127.0.0.1 and keys of SuperNodes, made for one test."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificates(folder: Path) -> dict[str, Path]:
    """An authority and a server certificate that it signed: the files by name."""
    folder.mkdir()
    authority, server = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer = _name("homo_dp test authority")
    ca = _builder(issuer, issuer, authority.public_key()).add_extension(
        x509.BasicConstraints(True, None), True
    )
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    leaf = _builder(_name("localhost"), issuer, server.public_key()).add_extension(names, False)
    found = {
        "ca": ca.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "cert": leaf.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "key": _private(server, serialization.PrivateFormat.TraditionalOpenSSL),
    }
    for name, data in found.items():
        (folder / f"{name}.pem").write_bytes(data)
    return {name: folder / f"{name}.pem" for name in found}


def write_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """The key of a SuperNode, as ssh-keygen -t ecdsa writes it: the private file and the public
    one.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    private.chmod(0o600)
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public.write_bytes(line + b"\n")
    return private, public


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
