"""What a service is started with, and what it tells when clients can reach it."""

from dataclasses import dataclass
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.serve.journal.continuing import NO_CONSENT, Consent
from polytempo.serve.journal.settings import ServiceSettings
from polytempo_client.session.addresses import check_loopback, is_loopback

OPEN_TO_STRANGERS = (
    "Clients from elsewhere need no certificate here, so anybody who reaches the port can flood the server with "
    "headers before it asks for a token. Start it with --mtls, or put nginx in front of it (deploy/nginx.conf)."
)


@dataclass(frozen=True)
class Endpoints:
    """Where a service is reached, and how. ``mutual``: clients have to show certificates of their own; ``insecure``:
    plaintext, only on loopback; ``admin``: where operators reach it, if they do."""

    address: str
    insecure: bool = False
    mutual: bool = False
    admin: str | None = None

    def check(self) -> None:
        if self.insecure:
            check_loopback(self.address)
        if self.insecure and self.mutual:
            raise UserError("--mtls and --insecure exclude each other: give one.")

    @property
    def open_to_strangers(self) -> bool:
        """Can others than this machine's users speak HTTP/2 to it without a certificate?"""
        return not self.mutual and not is_loopback(self.address)

    def by_option(self) -> dict[str, str]:
        """The addresses to listen on, by the options that name them."""
        return {"--listen": self.address} | ({} if self.admin is None else {"--admin": self.admin})


@dataclass(frozen=True)
class ServeOptions:
    """A service to run. ``directory`` holds ``service.toml``, ``access.json``, the server's certificate and key, and
    the journal; ``consent`` is what may happen to it."""

    directory: Path
    settings: ServiceSettings
    endpoints: Endpoints
    consent: Consent = NO_CONSENT
    log_level: str = "info"
    store: str | None = None
    """The address of the database that the service is to be kept in, if its directory does not say so yet."""

    def check(self) -> None:
        """Find what is wrong with the command before anything is touched, and before code of the user's runs:
        ``settings.check`` imports it."""
        self.endpoints.check()
        if self.directory.is_file():
            raise UserError(f"{self.directory} is a file. Expected the service's directory (--dir).")


@dataclass(frozen=True)
class Listening:
    """A service that clients can reach."""

    address: str
    secure: bool
    parameters: int
    """Numbers in the model."""
    event: int
    """The last event in its journal; 0 if it begins."""
    admin: str | None = None
    mutual: bool = False
    defences: str = ""
    """What is done about hostile updates, in words."""
    stands_by: bool = False
    """Does it stand by until no other server leads?"""
