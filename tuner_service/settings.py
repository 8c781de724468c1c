"""Settings: the only reader of environment variables (prefix ``TILECORE_``)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from db.file_url import file_url, with_password_file
from db.records import MAX_TIME_S, MAX_TRIALS
from tuner_service.errors import InvalidSettings
from tuner_service.wording import told

RATE_LIMIT, WRONG_KEY_LIMIT = "6000/minute", "30/minute"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def default_data_dir() -> Path:
    """Return ``tilecore`` in the user's data folder (XDG)."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "tilecore"


class Settings(BaseSettings):
    """Everything an operator can set. Durations are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="TILECORE_",
        extra="ignore",
        frozen=True,
        env_ignore_empty=True,
        allow_inf_nan=False,
    )

    data_dir: Path = Field(default_factory=default_data_dir)
    database_url: str | None = None  # None: SQLite in data_dir
    database_password_file: Path | None = None  # for a URL with a user and no password
    database_timeout_s: float = Field(30.0, gt=0)
    host: str = "127.0.0.1"
    port: int = Field(8711, ge=0, le=65535)
    executor: Literal["auto", "ray", "local"] = "auto"  # auto: Ray, else local
    ray_address: str | None = None  # None: a Ray of its own on this machine
    compile_workers: int | None = Field(None, ge=1, le=256)  # per node; None: by its cores
    compile_timeout_s: float = Field(60.0, gt=0)
    run_timeout_s: float = Field(60.0, gt=0)
    queue_depth: int = Field(16, ge=1, le=1024)  # trials handed to the workers at once
    leader_ttl_s: float = Field(10.0, gt=0.1)
    lease_s: float | None = Field(None, gt=0)  # None: as long as workers' own limits let a trial be
    max_attempts: int = Field(6, ge=1)  # executions of a trial whose worker got lost
    retry_base_s: float = Field(0.5, ge=0)
    max_trials: int = Field(96, ge=1, le=MAX_TRIALS)  # of a run that does not say
    time_limit_s: float = Field(900.0, gt=0, le=MAX_TIME_S)  # of a run that does not say
    # Runs that the system queues by itself, where answers rest on what may no longer hold:
    retune: Literal["auto", "off"] = "auto"
    retune_trials: int = Field(24, ge=1, le=MAX_TRIALS)
    retune_max_open: int = Field(8, ge=1, le=1000)
    max_body_bytes: int = Field(65_536, ge=1024)
    max_model_bytes: int = Field(16 << 20, ge=1024)  # of an uploaded cost model
    max_program_bytes: int = Field(1 << 20, ge=1024, le=1 << 20)  # of POST /v1/programs
    service_url: str | None = None  # of the service that @autotune asks; None: it tunes here
    service_timeout_s: float = Field(900.0, gt=0)  # it waits so long for a run of that service
    key: str | None = None  # an API key for that service, and for the one that --service names
    auth: Literal["auto", "required", "off"] = "auto"  # auto: required unless bound to loopback
    rate_limit: str = RATE_LIMIT  # requests per API key, for each process of the service
    wrong_key_limit: str = WRONG_KEY_LIMIT  # unknown keys per client address, for each process
    max_in_flight: int = Field(128, ge=1)  # requests waiting for an answer; beyond: 503
    header_timeout_s: float = Field(10.0, gt=0)  # for the whole header of a request: then 408
    body_timeout_s: float = Field(30.0, gt=0)  # for its whole body
    keep_alive_s: float = Field(75.0, gt=0)  # for the next request; clients give up before that
    stop_grace_s: float = Field(20.0, ge=0, le=3600)  # for requests under way; then they get 503
    max_streams: int = Field(64, ge=1)  # of events at once, for each process; beyond: 503
    answer_processes: int | None = Field(None, ge=0, le=64)  # None: see answer_desk; 0: none
    access_log: Literal["all", "errors", "off"] = "errors"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("rate_limit", "wrong_key_limit")
    @classmethod
    def _is_rate(cls, text: str) -> str:
        if text not in (RATE_LIMIT, WRONG_KEY_LIMIT):
            import limits  # slow to import, and needed only where somebody sets a limit

            try:
                limits.parse(text)
            except ValueError as error:
                raise ValueError(f"expected a rate ({RATE_LIMIT})") from error
        return text

    @field_validator("ray_address")
    @classmethod
    def _is_address(cls, text: str | None) -> str | None:
        if text is not None and not is_address(text):
            raise ValueError("expected HOST:PORT of a Ray head")
        return text

    @property
    def needs_key(self) -> bool:
        """Whether requests without an API key are refused."""
        if self.auth != "auto":
            return self.auth == "required"
        return self.host not in LOOPBACK

    @property
    def url(self) -> str:
        """The database URL; with a password file it names the file, not what it holds now.

        Raises:
            InvalidSettings: the password cannot be read, or the URL has no place for it (SV910).
        """
        if self.database_url is None:
            return file_url(self.database_file)
        if self.database_password_file is None:
            return self.database_url
        user, at, _ = self.database_url.partition("://")[2].partition("@")
        if not at or not user or ":" in user:
            raise InvalidSettings(
                message="TILECORE_DATABASE_URL: expected a user and no password beside "
                "TILECORE_DATABASE_PASSWORD_FILE (postgresql+psycopg://USER@HOST/NAME)"
            )
        try:
            self.database_password_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"TILECORE_DATABASE_PASSWORD_FILE: cannot be read: {error}"
            raise InvalidSettings(message=message) from error
        return with_password_file(self.database_url, self.database_password_file)

    @property
    def database_file(self) -> Path:
        """Where the embedded database lies, if that is the one."""
        return self.data_dir.absolute() / "tilecore.db"

    @property
    def measures_here(self) -> bool:
        """Whether this machine alone measures, not nodes of a cluster."""
        return self.ray_address is None or self.executor == "local"

    @property
    def artifact_dir(self) -> Path:
        """Where compiled kernels lie."""
        return self.data_dir / "artifacts"

    @property
    def log_file(self) -> Path:
        """Where a coordinator writes that runs as a child process."""
        return self.data_dir / "coordinator.log"

    def environment(self) -> dict[str, str]:
        """Return the environment of a child process that shall have these settings."""
        own = {
            f"TILECORE_{name.upper()}": str(value)
            for name, value in self.model_dump().items()
            if value is not None
        }
        return {**os.environ, **own}


def load_settings(**overrides: object) -> Settings:
    """Return the settings from the environment; ``overrides`` that are not None win.

    Raises:
        InvalidSettings: a value cannot be used (SV910).
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        faults = "; ".join(
            f"TILECORE_{'_'.join(map(str, e['loc'])).upper()}: {told(e)}" for e in error.errors()
        )
        raise InvalidSettings(message=faults) from error


def is_address(text: str) -> bool:
    """Return whether a text has the form HOST:PORT."""
    found = re.fullmatch(r".+:([0-9]{1,5})", text)
    return found is not None and 0 < int(found[1]) < 65536
