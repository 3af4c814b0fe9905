"""The key pair of a service's backups. ``backup.key`` signs them, and ``backup.pem`` shows that a backup is unchanged
and of this service: whoever can only write where backups lie can make none that passes."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from polytempo.core.disk.files import make_directory, write_shared
from polytempo.core.errors import UserError
from polytempo.serve.access.tls import private_key
from polytempo.serve.paths import BACKUP_KEY, BACKUP_PUBLIC_KEY
from polytempo_client.session.credentials import read_pem


def make_backup_key(directory: Path) -> bool:
    """Write ``backup.key`` and ``backup.pem`` unless they are there. Returns whether anything was written."""
    key_file, public_file = directory / BACKUP_KEY, directory / BACKUP_PUBLIC_KEY
    if key_file.exists() and public_file.exists():
        return False
    if public_file.exists():
        raise UserError(
            f"{directory} has {BACKUP_PUBLIC_KEY} but no {BACKUP_KEY}: backups made here are not signed. Copy "
            f"{BACKUP_KEY} there, or remove {BACKUP_PUBLIC_KEY} to make a new pair."
        )
    key = backup_signer(directory) or Ed25519PrivateKey.generate()
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        make_directory(directory, 0o700)
        write_shared(key_file, key_pem, 0o600)
        write_shared(public_file, pem, 0o644)
    except OSError as error:
        raise UserError(f"Cannot write keys to {directory}: {error.strerror}. Choose another directory.") from None
    return True


def backup_signer(directory: Path) -> Ed25519PrivateKey | None:
    """The key that signs backups of the service in this directory, if it has one."""
    path = directory / BACKUP_KEY
    if not path.exists():
        return None
    key = private_key(path, read_pem(path))
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} holds a key of another kind. Expected an Ed25519 key, as `polytempo certs` makes one.")
    return key


def backup_verifier(path: Path) -> Ed25519PublicKey:
    """The public key in this file."""
    try:
        key = serialization.load_pem_public_key(read_pem(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(f"{path} holds no public key of backups. Expected the {BACKUP_PUBLIC_KEY} of the service.")
    return key


def is_signed_by(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, content)
        return True
    except InvalidSignature:
        return False
